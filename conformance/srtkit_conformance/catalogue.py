"""Which modules hold the checks and mutants of a kind. The suite owns this list; nothing registers itself."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import ModuleType

from srtkit_conformance.check import Check, checks_of
from srtkit_conformance.mutant import Mutant, mutants_of

KINDS = (
    "attention",
    "recurrent",
    "prefix_cache",
    "kv_store",
    "graph_runner",
    "model_loader",
    "transport",
    "platform",
    "ops",
    "models",
    "routes",
)
"""Kinds the suite certifies."""

SERVED = ("platform", "attention", "prefix_cache", "graph_runner", "model_loader", "transport", "ops", "models")
"""Kinds that the served model uses. Recurrent is not among them: it has no recurrent layers."""

REFERENCES: dict[str, tuple[str, ...]] = {
    "attention": ("torch",),
    "recurrent": ("torch",),
    "prefix_cache": ("radix", "mamba", "hiradix", "chunk"),
    "kv_store": ("files",),
    "graph_runner": ("eager", "cuda-full", "cuda-piecewise", "cuda-breakable"),
    "model_loader": ("safetensors", "gguf", "dummy"),
    "transport": ("zmq", "inproc"),
    "platform": ("cpu", "fakedev"),
    "ops": ("cpu",),
    "models": ("models",),
    "routes": ("admin", "cache"),
    "loading": ("toy",),
    "server": ("attention:torch", "prefix_cache:radix"),
}
"""Plugins of this repository that run anywhere. No check fails on any, and each check passes on one: what is refused
by all, or informational on all, is no proof that it can be passed. `NOT_PASSED` are the exceptions."""

NOT_PASSED: dict[str, str] = {
    "attention.refusals.q_len": "informational: the reference takes more queries than it declares",
    "prefix_cache.hit_rate": "informational always: it reports a figure",
    **dict.fromkeys(
        ("ops.embed", "ops.argmax", "ops.sample", "ops.penalize"), "passes on a GPU, whose providers alone have these"
    ),
    **dict.fromkeys(
        ("ops.route", "ops.experts", "ops.experts_weights"), "passes over aiter's double: its provider alone has these"
    ),
    "attention.parts.store_rotated": "passes on a GPU: attention of CPUs stores without rotating",
    "models.hidden": "our models do not go on from another stage's hidden states; the variant models.later_stage does",
}
"""Checks that no reference passes, and why that is as it should be."""

DEVICES: dict[str, str] = {
    "graph_runner:cuda-breakable": "fakedev",
    "graph_runner:cuda-full": "fakedev",
    "graph_runner:cuda-piecewise": "fakedev",
    "attention:aiter": "rocm",
    "attention:aiter-vec": "rocm",
    "attention:fa3": "cuda",
    "attention:flashinfer": "cuda",
    "attention:triton": "cuda",
    "ops:aiter": "rocm",
    "ops:triton": "cuda",
}
"""Plugins of this repository that are checked on another device than the CPU."""

LOADING = "loading"
"""Checks that every kind shares. By themselves they are a suite, too: that of a toy plugin made of text."""

SERVER = "server"
"""Checks through `srt serve`, which the kinds in `SERVED` share. By themselves a suite of mutants of several kinds."""

PACKAGE = "srtkit_conformance"


@dataclass(frozen=True)
class Suite:
    """Checks and mutants by module name, so that a child process can import the same ones."""

    kind: str
    check_modules: tuple[str, ...]
    mutant_modules: tuple[str, ...] = ()

    def checks(self) -> tuple[Check, ...]:
        """Every check in order of definition, shared ones under the kind's name. Ids are unique."""
        found = [one for module in _imported(self.check_modules) for one in checks_of(module)]
        named = [one if one.kind == self.kind else _for_kind(one, self.kind) for one in found]
        ids = [one.id for one in named]
        assert len(set(ids)) == len(ids), f"a check id of {self.kind} is used twice"
        return tuple(named)

    def mutants(self) -> tuple[Mutant, ...]:
        """Every mutant and legal variant. Ids are unique."""
        found = tuple(one for module in _imported(self.mutant_modules) for one in mutants_of(module))
        assert len({one.id for one in found}) == len(found), f"a mutant id of {self.kind} is used twice"
        return found


def suite_for(kind: str) -> Suite:
    """The suite of a kind, or of `LOADING` or `SERVER` alone."""
    own = tuple(_modules("checks", kind))
    first = tuple(_modules("checks", LOADING)) if kind in KINDS else ()
    last = tuple(_modules("checks", SERVER)) if kind in SERVED else ()
    return Suite(kind, first + own + last, tuple(_modules("mutants", kind)))


def checks_for(kind: str) -> tuple[Check, ...]:
    """Every check of a kind: loading and hygiene, its own, the server's. Ids are unique."""
    return suite_for(kind).checks()


def mutants_for(kind: str) -> tuple[Mutant, ...]:
    """Every mutant and legal variant of a kind."""
    return suite_for(kind).mutants()


def has_own_checks(kind: str) -> bool:
    """Whether the kind has checks beside those of loading. Imports none."""
    return any(_modules("checks", kind))


def _for_kind(check: Check, kind: str) -> Check:
    """A check that every kind shares, under the kind's name: "attention.loading.light"."""
    return replace(check, id=f"{kind}.{check.id}", kind=kind)


def _modules(part: str, name: str) -> Iterator[str]:
    path = f"{PACKAGE}.{part}.{name}"
    if importlib.util.find_spec(path) is None:
        return
    submodules: tuple[str, ...] = vars(importlib.import_module(path)).get("MODULES", ())
    yield from [f"{path}.{one}" for one in submodules] or [path]


def _imported(names: tuple[str, ...]) -> Iterator[ModuleType]:
    return (importlib.import_module(name) for name in names)
