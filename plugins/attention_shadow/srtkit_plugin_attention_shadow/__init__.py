"""A reference beside a live attention backend: the descriptor. Imports no torch; `build` imports the backend.

`[attention] shadow = "NAME"` puts it around every backend that serves, with NAME as the reference; named by `use` it
is a backend of its own. Which steps and layers are compared, how strictly, and where dumps go are its options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionCapabilities, AttentionDescriptor
from srtkit.spec.capabilities import Need, No
from srtkit.spec.facts import DeviceFacts
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_attention_torch import capabilities as torch_capabilities
from srtkit_plugin_attention_torch import kv_layouts

DEFAULT = "torch"


class Options(BaseModel):
    """`[attention.options.shadow]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    watch: str = Field(DEFAULT, description="the backend that serves; `[attention] shadow` hands in those of the file")
    live: dict[str, Any] = Field(default_factory=dict, description="options of the backend that serves")
    against: str = Field(DEFAULT, description="the reference; `[attention] shadow` names it")
    reference: dict[str, Any] = Field(default_factory=dict, description="options of the reference")
    every: int = Field(16, ge=1, description="compare every n-th step, the first among them")
    layers: tuple[int, ...] = Field((), description="indices of the layers to compare; none named: all")
    tolerance: float = Field(1.0, gt=0, description="times the limit of the dtype (README.md)")
    reports: int = Field(4, ge=1, description="reports of a layer group, after which nothing is compared any more")
    folder: str = Field("srtkit-shadow", description="where dumps are written; empty: no dumps")
    dump_mib: int = Field(256, ge=1, description="largest dump; rows without a finding are left out first")


def needs(options: BaseModel) -> Sequence[Need]:
    """The reference, and the backend that serves unless core hands it in."""
    assert isinstance(options, Options)
    reference = Need("reference", "attention", options.against, options.reference)
    return (Need("live", "attention", options.watch, options.live), reference) if options.watch else (reference,)


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """What it can do over `torch`: all of that, but for calls with plans of their own and for capture."""
    own_plans = No("a plan of the shadow holds two, which these calls do not know")
    return replace(
        torch_capabilities(facts),
        capture="never",  # a comparison waits for the device and writes files
        dense=own_plans,
        advance=own_plans,
        move_slots=No("moves are not compared"),
    )


def build(build: AttentionBuild) -> AttentionBackend:
    """The pair of one layer group. Raises `ConfigError` when it was given nothing to watch."""
    from srtkit_plugin_attention_shadow.backend import ShadowAttention

    return ShadowAttention(build)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:shadow`."""
    return AttentionDescriptor(
        contract="1.0", options=Options, needs=needs, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
