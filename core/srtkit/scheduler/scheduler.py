"""The scheduler: absorb requests, plan a step, commit its output. Start reading here.

It is the only writer of sequences, row slots and pages. A plain decode step makes no Python object per
row: Python per sequence is spent on admission, prompt chunks, ends and retraction. It never blocks,
never reads a clock and knows no tensor, text or socket.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from srtkit.scheduler.book import PageBook
from srtkit.scheduler.builder import Chunk, PlanBuilder
from srtkit.scheduler.columns import Columns, Slots, State
from srtkit.scheduler.limits import SchedulerLimits
from srtkit.scheduler.sequence import Sequence
from srtkit.scheduler.waiting import Waiting, common_prefix
from srtkit.spec.messages import Abort, Counters, Deltas, Finished, Logprobs, Started, Submit, ints
from srtkit.spec.prefix_cache import PrefixCache
from srtkit.spec.step_plan import EMPTY, MAX_STOP_IDS, Column, Ints, RowFlag, StepKey, StepPlan


@dataclass
class StepOutput:
    """What a step sampled. `ids` int32 [rows], -1 where nothing was sampled; logprobs by row index."""

    ids: Ints
    logprobs: dict[int, tuple[Ints, np.ndarray[tuple[int], np.dtype[np.float32]]]] = field(default_factory=dict)


class Scheduler:
    """One scheduler for one engine. Calls alternate: absorb, plan, commit (`depth` plans later)."""

    def __init__(self, limits: SchedulerLimits, cache: PrefixCache, fit: Callable[[StepKey], StepKey]) -> None:
        whole = (pages for component, pages in limits.pools.items() if component.reach == "all")
        assert limits.max_pages <= min(whole, default=limits.max_pages), "the longest sequence does not fit the pool"
        self.limits = limits
        self.columns = Columns(limits.max_rows, limits.max_context)
        self.book = PageBook(limits, cache, self.columns)
        self.waiting = Waiting(limits.policy)
        self.running: dict[int, Sequence] = {}  # by row slot, retiring ones included
        self.counters = Counters()
        self._builder = PlanBuilder(self.book, fit)
        self._live: dict[int, Sequence] = {}  # by rid, those running that have not ended
        self._tried: tuple[Sequence | None, Ints | int] = None, 0  # matched last; pages without which it cannot start
        self._arrivals = 0
        self._started: list[Started] = []
        self._finished: list[Finished] = []

    # -- absorb ---------------------------------------------------------------------------------

    def submit(self, request: Submit) -> None:
        """Take a new request into the queue, or answer that it cannot be served."""
        ids = ints(request.ids)
        if problem := self._refusal(request, len(ids)):
            self._finished.append(Finished(request.rid, 0, "error", problem))
            return
        self._arrivals += 1
        sequence = Sequence(request, ids, len(ids), order=self._arrivals)
        sequence.ticket = self.book.cache.fetch(sequence.key(ids, limit=len(ids) - 1))
        self.waiting.push(sequence)

    def abort(self, request: Abort) -> None:
        """End a sequence wherever it stands. Unknown ids have ended already: nothing to do."""
        if request.rid in self._live:
            self._end(self._live[request.rid], request.reason)
            self._free_retired()
        elif self.waiting.remove(request.rid):
            self._finished.append(Finished(request.rid, 0, request.reason))
        else:
            return
        self.counters.aborted += request.reason == "abort"

    @property
    def has_work(self) -> bool:
        """Whether a plan could have rows, now or after a commit."""
        return bool(self.waiting) or bool(self.running)

    # -- plan -----------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The next step. No rows: nothing can run before something in flight is committed (or at all)."""
        decode = self._decode_rows()
        room = min(self.limits.chunk_tokens, self.limits.max_tokens - len(decode))
        chunks, budget = self._continue_prompts(room)
        # A prompt that needed room may have retracted rows collected before it.
        decode = decode[self.columns.state[decode] == State.DECODE]
        chunks = [chunk for chunk in chunks if self.columns.state[chunk.slot] == State.PROMPT]
        chunks += self._admit(budget)
        for chunk in chunks:
            if chunk.last:
                self.columns.state[chunk.slot] = State.DECODE
        return self._builder.build(decode, chunks)

    def _decode_rows(self) -> Slots:
        rows = self.columns.decode_rows()
        left = self.book.grow_decode(rows)
        while len(left) and self._retract_for(self.book.missing(left, self.columns.planned[left] + 1), keep_slot=-1):
            left = self.book.grow_decode(left[self.columns.state[left] == State.DECODE])
        kept: Slots = rows[(self.columns.state[rows] == State.DECODE) & (~np.isin(rows, left) if len(left) else True)]
        return kept

    def _continue_prompts(self, budget: int) -> tuple[list[Chunk], int]:
        chunks = []
        for slot in (self.columns.state == State.PROMPT).nonzero()[0]:
            if budget <= 0:
                break
            if self.columns.state[slot] != State.PROMPT:
                continue  # retracted for one before it
            if chunk := self._chunk(int(slot), budget, may_retract=True):
                chunks.append(chunk)
                budget -= chunk.n
        return chunks, budget

    def _chunk(self, slot: int, budget: int, *, may_retract: bool) -> Chunk | None:
        """The next piece of a prompt, as long as budget and pages allow; None if it has to wait."""
        columns = self.columns
        start, prompt_len = int(columns.planned[slot]), int(columns.prompt_len[slot])
        n = min(prompt_len - start, budget)
        if not self.limits.inner_snapshots:
            wanted = columns.snapshot_at[slot]
            n = min(n, int((wanted[wanted > start] - start).min(initial=n)))
        while not self.book.grow(slot, start + n):
            missing = self.book.missing(slot, start + n)
            if not (may_retract and self._retract_for(missing, keep_slot=slot)):
                n = min(n, self.book.longest(slot) - start)
                if n <= 0 or not self.book.grow(slot, start + n):
                    return None
                break
            if columns.state[slot] != State.PROMPT:
                return None  # it was put back itself
        return Chunk(slot, start, n, last=start + n == prompt_len)

    def _admit(self, budget: int) -> list[Chunk]:
        chunks: list[Chunk] = []

        def accept(sequence: Sequence) -> bool | None:
            room = budget - sum(chunk.n for chunk in chunks)
            if room <= 0 or self.columns.free_slots == 0:
                return False
            fetching = sequence.ticket > 0 and self.book.cache.fetching(sequence.ticket)
            if fetching or self._shares_with_running(sequence):
                return None
            if not self._start(sequence):
                return False
            if chunk := self._chunk(sequence.slot, room, may_retract=False):
                chunks.append(chunk)
            return True

        self.waiting.admit(accept)
        return chunks

    def _shares_with_running(self, sequence: Sequence) -> bool:
        """Whether a running prompt is computing a prefix this one could reuse: then it waits for it."""
        if not self.limits.shares:
            return False
        page = self.limits.page_size
        usable = sequence.ids[: len(sequence.ids) - 1]
        for donor in self._live.values():
            pending = self.columns.computed[donor.slot] < self.columns.prompt_len[donor.slot]
            if not pending or donor.request.namespace != sequence.request.namespace:
                continue
            if len(usable) < page or not np.array_equal(donor.ids[:page], usable[:page]):
                continue
            common = common_prefix(donor.ids, usable) // page * page
            if self.book.state:
                wanted = self.columns.snapshot_at[donor.slot]
                common = int(wanted[wanted <= common].max(initial=0))
            if common > self.book.cache.peek([sequence.key(sequence.ids, limit=len(usable))])[0]:
                return True
        return False

    def _start(self, sequence: Sequence) -> bool:
        """Give a sequence a row slot and its cached prefix, if the pages for its prompt can be had."""
        columns, room, n = self.columns, self.book.room, len(sequence.ids)
        prompts = np.flatnonzero(columns.state == State.PROMPT).astype(np.int32)
        promised, before = self.book.missing(prompts, columns.prompt_len[prompts]), room.available()
        if self._live and sequence is self._tried[0] and (self._tried[1] + promised > before).any():
            return False  # nobody has started since, whose prefix it might share, and what it lacked is not there yet
        slot = sequence.slot = columns.acquire()
        cached = self.book.lend(sequence)
        own, available = self.book.missing(slot, n + 1), room.available()
        # A lease keeps pages that could be evicted before; while some move, none can be.
        self._tried = sequence, own if room.moving else own + before - available
        unloaded = sequence.lease is not None and sequence.lease.pending > 0 and room.moving
        if unloaded or (self._live and (own + promised > available).any()):
            self.book.give_back(sequence)
            return False
        request, sampling = sequence.request, sequence.request.sampling
        columns.state[slot] = State.PROMPT
        columns.tokens[slot, :n] = sequence.ids
        columns.prompt_len[slot] = columns.known[slot] = n
        columns.target_len[slot] = min(sequence.prompt_len + sampling.max_tokens, self.limits.max_context)
        columns.min_len[slot] = sequence.prompt_len + sampling.min_tokens
        columns.stop_ids[slot, : len(sampling.stop_ids)] = sampling.stop_ids
        columns.row_flags[slot] = RowFlag.EXACT | RowFlag.SAMPLE | (RowFlag.LOGPROBS if sampling.logprobs >= 0 else 0)
        columns.greedy[slot] = sampling.temperature == 0 and sampling.min_tokens == 0
        self.running[slot] = sequence
        self._live[request.rid] = sequence
        self._started.append(Started(request.rid, slot, min(cached, sequence.prompt_len)))
        self.book.admit(slot)
        self._builder.admit(sequence)
        if not sequence.retracted:
            self.counters.prompt_tokens += n
            self.counters.cached_tokens += cached
        return True

    def _retract_for(self, n: Ints, keep_slot: int) -> bool:
        """Put back the youngest running sequence so that n pages of each component can be had. False: nothing
        (more) to do now.

        With steps in flight its pages come free only when they are committed: then waiting is enough. A sequence
        alone is put back if it pins cached pages that it does not read: it starts again on those that it does.
        """
        available = self.book.room.available()
        if (available >= n).all():
            return True
        if (available + self.book.room.coming() >= n).all():
            return False
        youngest = max(self._live.values(), key=lambda one: one.order)
        if not self.book.pins_unused(youngest) if len(self._live) == 1 else youngest.slot == keep_slot:
            return False
        self._put_back(youngest)
        return True

    def _put_back(self, sequence: Sequence) -> None:
        """Into the queue, to go on later from its committed tokens."""
        slot = sequence.slot
        del self._live[sequence.request.rid]
        self.book.end(sequence)
        ids = self.columns.tokens[slot, : self.columns.known[slot]].copy()
        self.waiting.push(replace(sequence, ids=ids, slot=0, lease=None, retracted=True))
        self.counters.retracted += 1
        self._free_retired()

    # -- commit ---------------------------------------------------------------------------------

    def complete(self, done: list[int], failed: list[int]) -> None:
        """Outcome of transfers; those of a step's loads come before its output is committed.

        If a load has failed, the cache has forgotten all, and every sequence starts again from its tokens.
        """
        evicted, spoilt = self.book.tiers.complete(done, failed)
        self.book.room.take_evicted(evicted)
        for sequence in list(self._live.values()) if spoilt else ():
            self._put_back(sequence)

    def commit(self, plan: StepPlan, output: StepOutput) -> Deltas:
        """Take a step's outputs: tokens, ends, pages of whole prompt chunks. Rows of ended sequences are dropped."""
        columns = self.columns
        slots, flags = plan.column(Column.ROW_SLOT).astype(np.intp), plan.column(Column.ROW_FLAGS)
        columns.in_flight[slots] -= 1
        live = columns.state[slots] != State.RETIRING
        alive = slots[live]
        columns.computed[alive] = (plan.column(Column.ROW_START) + plan.column(Column.ROW_N_QUERY))[live]
        sampled = live & (flags & int(RowFlag.SAMPLE) != 0)
        rows, ids = slots[sampled], output.ids[sampled]
        columns.known[rows] = length = columns.known[rows] + 1
        columns.tokens[rows, length - 1] = ids
        for row, offset, target in plan.records(Column.SNAPSHOTS, 3).tolist():
            if live[row]:
                upto = int(plan.column(Column.ROW_START)[row]) + offset
                self.book.keep(self.running[int(slots[row])], upto, target)
        offered = flags[live] & int(RowFlag.PROMPT) != 0
        if self.book.state:  # the cache says where it wants the next one
            offered |= self.book.state.missed_snapshots(alive)
        for slot in alive[offered].tolist():
            self.book.keep(self.running[slot], int(columns.computed[slot]))
        self.book.let_go(alive)
        # One search through all, as hardly a step has any: a reduction by row takes ten times as long.
        hits = np.flatnonzero(columns.stop_ids.take(rows, axis=0) == ids[:, None]) // MAX_STOP_IDS
        stopped = dict.fromkeys(hits[length[hits] > columns.min_len[rows[hits]]].tolist(), "stop")
        full = dict.fromkeys((length >= columns.target_len[rows]).nonzero()[0].tolist(), "length")
        for row, reason in sorted((full | stopped).items()):
            self._end(self.running[int(rows[row])], reason)
        self._free_retired()
        self.counters.steps += 1
        self.counters.output_tokens += len(ids)
        logprobs = tuple(
            Logprobs(int(slots[row]), top.astype("<i4").tobytes(), values.astype("<f4").tobytes())
            for row, (top, values) in output.logprobs.items()
            if sampled[row]
        )
        return self._deltas(plan.step, rows, ids, logprobs)

    def news(self) -> Deltas | None:
        """Starts and ends that no step carried yet; None when there are none."""
        if not self._started and not self._finished:
            return None
        return self._deltas(-1, EMPTY, EMPTY, ())

    def _deltas(self, step: int, rows: Slots, ids: Ints, logprobs: tuple[Logprobs, ...]) -> Deltas:
        deltas = Deltas(
            step=step,
            slots=rows.astype("<i4").tobytes(),
            counts=np.ones(len(rows), "<i4").tobytes(),
            ids=ids.astype("<i4").tobytes(),
            started=tuple(self._started),
            finished=tuple(self._finished),
            logprobs=logprobs,
        )
        self._started.clear()
        self._finished.clear()
        return deltas

    def _end(self, sequence: Sequence, reason: str) -> None:
        del self._live[sequence.request.rid]
        self._finished.append(Finished(sequence.request.rid, sequence.slot, reason))
        self.book.end(sequence)

    def _free_retired(self) -> None:
        for slot in ((self.columns.state == State.RETIRING) & (self.columns.in_flight == 0)).nonzero()[0].tolist():
            self.book.give_back(self.running.pop(slot))
            self._builder.release(slot)

    def _refusal(self, request: Submit, n: int) -> str:
        limits = self.limits
        if n == 0:
            return "the prompt is empty"
        if n >= limits.max_context:
            return f"the prompt has {n} tokens; with one to generate it must be below {limits.max_context}"
        if len(request.sampling.stop_ids) > MAX_STOP_IDS:
            return f"{len(request.sampling.stop_ids)} stop ids; at most {MAX_STOP_IDS}"
        return ""
