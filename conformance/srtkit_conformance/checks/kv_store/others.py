"""What other threads and processes see: blobs whole or not at all, also when their writer is killed."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from srtkit.spec.capabilities import No
from srtkit.spec.kv_store import KVStoreCapabilities
from srtkit_conformance.check import Figures, Informational, Outcome, check, expect
from srtkit_conformance.kits.kv_store.blobs import SECONDS, blob, get, key, put
from srtkit_conformance.kits.kv_store.places import build, opened, place
from srtkit_conformance.kits.kv_store.writers import CRASH_BYTES, CRASH_KEYS, writer
from srtkit_conformance.target import Target

THREADS, ROUNDS, KEYS = 4, 40, 8
KILLS = 12


@check(
    "kv_store.threads",
    level=1,
    clause="kv_store/1.0: any thread may call, several at once",
    explain="Threads share a buffer or a connection: one gets the other's content, or part of it.",
)
def threads(target: Target) -> Figures:
    with opened(target) as store:

        def work(thread: int) -> int:
            found = 0
            for turn in range(ROUNDS):
                number = (thread + turn) % KEYS
                store.put([(key(number), blob(number, 20_000))], SECONDS)
                for other, content in enumerate(store.get([key(one) for one in range(KEYS)], SECONDS).values):
                    right = content is None or content == blob(other, 20_000)
                    expect(right, "a thread gets another content", observed=other)
                    found += content is not None
            return found

        with ThreadPoolExecutor(THREADS) as pool:
            found = sum(pool.map(work, range(THREADS)))
        expect(found > 0, "nothing is found while several threads write")
    return {"found": found}


@check(
    "kv_store.persistent",
    level=1,
    clause="kv_store/1.0: persistent: what was kept is there after a restart",
    explain="Contents are written out at close only, or deleted by it.",
)
def persistent(target: Target) -> Outcome:
    can = _declared(target).persistent
    if isinstance(can, No):
        return Informational(f"declared a no: {can.reason}")
    with place(target) as options:
        for number in range(3):
            with closing(build(target, options)) as store:
                expect(get(store, *range(number)) == tuple(blob(one, 1000) for one in range(number)), "lost by closing")
                put(store, number)
        left = build(target, options)  # one that is never closed
        put(left, 4)
        with closing(build(target, options)) as store:
            expect(get(store, 4) == (blob(4, 1000),), "kept by a store that was not closed, and lost")
        left.close()
    return None


@check(
    "kv_store.shared",
    level=1,
    clause="kv_store/1.0: shared: several use one store at once, and find what the others have put",
    explain="A store looks at what is there once, at its start.",
)
def shared(target: Target) -> Outcome:
    can = _declared(target).shared
    if isinstance(can, No):
        return Informational(f"declared a no: {can.reason}")
    with place(target) as options, closing(build(target, options)) as one, closing(build(target, options)) as other:
        for number, (mine, theirs) in enumerate(((one, other), (other, one)) * 3):
            expect(get(theirs, number) == (None,), "found before it was put")
            put(mine, number)
            expect(get(theirs, number) == (blob(number, 1000),), "not found by another that uses the store")
            expect(theirs.exists([key(number)], SECONDS).values == (True,), "exists differs from get")
    return None


@check(
    "kv_store.killed",
    level=1,
    clause="kv_store/1.0: other callers see a blob whole or not at all",
    explain="A writer that is killed leaves part of a blob under its key: write beside it, and rename.",
    isolated=True,
    forks=True,
)
def killed(target: Target) -> Outcome:
    if isinstance(_declared(target).persistent, No):
        return Informational("keeps nothing beyond its process")
    found = 0
    with place(target) as options:
        rng = target.rng("killed")
        for writes, wait in zip(rng.integers(2, 10, KILLS), rng.uniform(0.0, 0.03, KILLS), strict=True):
            with writer(target, options) as said:
                for _ in range(writes):
                    said.recv()
                time.sleep(wait)  # it is killed while it writes, not before it begins
            with closing(build(target, options)) as store:
                for number, content in enumerate(get(store, *range(CRASH_KEYS))):
                    whole = content is None or content == blob(number, CRASH_BYTES)
                    expect(whole, "part of a blob is taken for all of it", observed=len(content or b""))
                    found += content is not None
                put(store, 1000)
                expect(get(store, 1000) == (blob(1000, 1000),), "the store does not work after a kill")
    expect(found > 0, "nothing that was put before a kill is found")
    return {"kills": KILLS, "found": found}


def _declared(target: Target) -> KVStoreCapabilities:
    can: KVStoreCapabilities = target.descriptor.capabilities(target.options)
    return can
