"""From the fields of a request to what the frontend opens: token ids and complete sampling parameters.

Knows the served model's tokenizer, limits and sampling defaults; no HTTP.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from msgspec.structs import asdict, replace

from srtkit.config.prepare import Run
from srtkit.serve.generation import Prompt
from srtkit.serve.requests import GenerationFields
from srtkit.spec.errors import RequestError
from srtkit.spec.messages import Sampling
from srtkit.spec.step_plan import MAX_STOP_IDS
from srtkit.text.chat import ChatTemplate
from srtkit.text.tokenizer import Tokenizer

R = TypeVar("R")

# A text, its token ids, or a list of either.
Prompts = str | Sequence[str | int | list[int]]

# From so many characters on, tokenizing would hold up the event loop: it goes to a thread.
LONG_TEXT = 20_000
_COLDEST = 1e-6  # below, dividing logits by the temperature could overflow; the limit is greedy anyway
_SEEDS = 2**63 - 1
# Parameters of requests that generation_config.json has defaults for, too.
_SAMPLED = ("temperature", "top_k", "top_p", "min_p")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServedModel:
    """What clients can know of the model. `aliases` are further names they may use.

    `defaults` is what a request that names nothing gets, all ids that end a text among it; `vocab_size` bounds token
    ids in prompts; `created` is in seconds since the epoch.
    """

    name: str
    aliases: tuple[str, ...]
    max_context: int
    tokenizer: Tokenizer | None
    chat: ChatTemplate
    defaults: Sampling
    vocab_size: int
    created: int

    def check_name(self, name: str) -> None:
        """Raises `RequestError` (404) with the names there are."""
        names = dict.fromkeys((self.name, *self.aliases))
        if name not in names:
            remedy = "served: " + ", ".join(names)
            raise RequestError("model", f"there is no model {name!r}", remedy, status=404, code="model_not_found")

    def card(self) -> dict[str, Any]:
        """What /v1/models says of it."""
        about = {"object": "model", "created": self.created, "owned_by": "srtkit"}
        return {"id": self.name, **about, "max_model_len": self.max_context}

    def tokenizer_for(self, param: str) -> Tokenizer:
        """The tokenizer. Raises `RequestError` when there is none for what the field `param` asks."""
        if self.tokenizer is None:
            raise RequestError(param, "the model was loaded without a tokenizer", "it takes and gives token ids only")
        return self.tokenizer


def serve_model(run: Run) -> ServedModel:
    """Build tokenizer and chat template of a prepared run; collect names, limits and defaults."""
    settings, data = run.settings.model, run.description.tokenizer
    tokenizer, chat = None, ChatTemplate(None)
    if data is not None:
        tokenizer = Tokenizer(data)
        chat = ChatTemplate(data.chat_template, tokenizer.bos_token, tokenizer.eos_token)
    generation = run.description.generation if settings.generation_config == "auto" else {}
    # All ids that end a text: of generation_config.json, else of config.json, and the tokenizer's.
    named = generation.get("eos_token_id", run.description.config.get("eos_token_id"))
    ends = list(named) if isinstance(named, list | tuple) else [] if named is None else [named]
    ends += tokenizer.eos_ids if tokenizer is not None else ()
    return ServedModel(
        name=settings.name or settings.source.rstrip("/").rpartition("/")[2],
        aliases=("default", settings.source),
        max_context=run.config.limits.max_context,
        tokenizer=tokenizer,
        chat=chat,
        defaults=sampling_defaults(generation, ends),
        vocab_size=run.config.model.vocab_size,
        created=int(time.time()),
    )


def sampling_defaults(generation: Mapping[str, Any], eos_ids: Iterable[int]) -> Sampling:
    """What the keys of generation_config.json say, and where texts end."""
    known = {name: value for name in _SAMPLED if (value := generation.get(name)) is not None}
    if generation.get("do_sample") is False:
        known["temperature"] = 0.0
    if generation.get("repetition_penalty", 1.0) not in (1.0, None):
        _log.warning("repetition_penalty of generation_config.json is not supported yet and has no effect")
    return Sampling(**known, stop_ids=tuple(dict.fromkeys(eos_ids)))


async def off_loop(size: int, work: Callable[[], R]) -> R:
    """Run `work` here, or in a thread when `size` characters make it long."""
    return work() if size < LONG_TEXT else await asyncio.to_thread(work)


async def prompts_of(
    model: ServedModel, prompts: Prompts, param: str, fields: GenerationFields, most: int, logprobs: int | None
) -> list[Prompt]:
    """The `n` prompts of every text or token list of the field `param`; `most` tokens each when `fields` do not say."""
    lists = await token_lists(model, prompts, param)
    return [prompt for ids in lists for prompt in build_prompts(ids, fields, model, most, logprobs)]


async def token_lists(model: ServedModel, prompts: Prompts, param: str) -> list[list[int]]:
    """Token ids of every prompt. BOS is added to texts that lack it."""
    single = isinstance(prompts, str) or all(isinstance(item, int) for item in prompts)
    lists: list[list[int]] = []
    for item in [prompts] if single else prompts:
        if isinstance(item, str):
            check_length(max(1, len(item) // 512), model, param)  # no token is longer: refused without being read
            ids = await off_loop(len(item), partial(model.tokenizer_for(param).encode, item))
        elif isinstance(item, list):
            check_ids(ids := cast(list[int], item), model, param)
        else:
            raise RequestError(param, "texts and token ids cannot be mixed in one list")
        check_length(len(ids), model, param)
        lists.append(ids)
    return lists


def check_length(n: int, model: ServedModel, param: str) -> None:
    """Raises `RequestError` unless there is a prompt and room for one more token."""
    if n == 0:
        raise RequestError(param, "the prompt is empty")
    if n >= model.max_context:
        cause = f"the prompt has {n} tokens or more; the context holds {model.max_context}, one of them to generate"
        raise RequestError(param, cause, "shorten the prompt", code="context_length_exceeded")


def check_ids(ids: Sequence[int], model: ServedModel, param: str) -> None:
    if ids and (wrong := [id_ for id_ in (min(ids), max(ids)) if not 0 <= id_ < model.vocab_size]):
        raise RequestError(param, f"token id {wrong[0]} is outside of the vocabulary (0 to {model.vocab_size - 1})")


def build_prompts(
    ids: list[int], fields: GenerationFields, model: ServedModel, default_tokens: int | None, logprobs: int | None
) -> list[Prompt]:
    """The `n` prompts of one token list. `default_tokens` None: the rest of the context.

    More tokens than the context has room for are not an error: the generation then ends by length.
    """
    if fields.stop or logprobs is not None:
        model.tokenizer_for("stop" if fields.stop else "logprobs")
    room = model.max_context - len(ids)
    wanted = fields.max_completion_tokens or fields.max_tokens or fields.max_new_tokens or default_tokens or room
    sampling = replace(_sampling(fields, model, min(wanted, room)), logprobs=-1 if logprobs is None else logprobs)
    seed = secrets.randbits(63) if fields.seed is None else fields.seed
    seeds = [(seed + i) & _SEEDS for i in range(fields.n)]
    return [Prompt(ids, replace(sampling, seed=one), fields) for one in seeds]


def _sampling(fields: GenerationFields, model: ServedModel, max_tokens: int) -> Sampling:
    check_ids(fields.stop_token_ids, model, "stop_token_ids")
    eos_ids = () if fields.ignore_eos else model.defaults.stop_ids
    stop_ids = tuple(dict.fromkeys((*eos_ids, *fields.stop_token_ids)))
    if len(stop_ids) > MAX_STOP_IDS:
        raise RequestError("stop_token_ids", f"there are {len(stop_ids)} with the model's own; at most {MAX_STOP_IDS}")
    if fields.min_tokens > max_tokens:
        raise RequestError("min_tokens", f"{fields.min_tokens} are more than the {max_tokens} that may be generated")
    given = {name: value for name, value in asdict(fields).items() if name in _SAMPLED and value is not None}
    wanted = replace(model.defaults, **given, max_tokens=max_tokens, min_tokens=fields.min_tokens, stop_ids=stop_ids)
    temperature = wanted.temperature if wanted.temperature >= _COLDEST else 0.0
    return replace(wanted, temperature=temperature, top_k=min(max(wanted.top_k, 0), model.vocab_size))
