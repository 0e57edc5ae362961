"""Attention that also measures what is stored: the descriptor. Imports no torch; `build` imports the backend.

`srt calibrate kv` serves a model with it; the backend that computes is one it needs. For use by itself, name the
folder in which each layer group leaves its figures when the engine ends.
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


class Options(BaseModel):
    """`[attention.options.calibrate]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    watch: str = Field("torch", description="the backend that computes")
    live: dict[str, Any] = Field(default_factory=dict, description="its options")
    folder: str = Field("", description="where figures go when the engine ends; empty: nowhere")


def needs(options: BaseModel) -> Sequence[Need]:
    """The backend that computes."""
    assert isinstance(options, Options)
    return (Need("live", "attention", options.watch, options.live),)


def capabilities(facts: DeviceFacts) -> AttentionCapabilities:
    """At most what `torch` can; core asks the backend that computes, too. No calls with plans, no capture."""
    own_plans = No("a plan of it holds another backend's, which this call does not know")
    return replace(
        torch_capabilities(facts),
        capture="never",  # a recorded step would not tell padding from tokens
        dense=own_plans,
        advance=own_plans,
        move_slots=No("moves are not measured"),
    )


def build(build: AttentionBuild) -> AttentionBackend:
    """The backend of one layer group. Raises `ConfigError` when it was given none to compute with."""
    from srtkit_plugin_cli_calibrate.backend import RangesAttention

    return RangesAttention(build)


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers `attention:calibrate`."""
    return AttentionDescriptor(
        contract="1.0", options=Options, needs=needs, capabilities=capabilities, kv_layouts=kv_layouts, build=build
    )
