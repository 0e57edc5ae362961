"""The source of a plugin that tests install under a name of their own: `torch`'s attention, slowed or failing.

`pace` is how many seconds a step takes at least. `fail`: "build", or "step" from the moment that the file
`trigger` exists.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionDescriptor
from srtkit.spec.hookspecs import hookimpl
from srtkit_plugin_attention_torch import Options as TorchOptions
from srtkit_plugin_attention_torch import srtkit_attention as torch_attention


class Options(BaseModel):
    """`[attention.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pace: float = 0.0
    fail: Literal["", "build", "step"] = ""
    trigger: str = ""


def build(request: AttentionBuild) -> AttentionBackend:
    """`torch`'s backend, wrapped."""
    from srtkit_plugin_attention_torch.backend import TorchAttention

    options = request.options
    assert isinstance(options, Options)
    if options.fail == "build":
        raise RuntimeError("the strings are out of tune")

    class Wrapped(TorchAttention):
        def fill(self, *arguments: object) -> None:
            time.sleep(options.pace)
            if options.fail == "step" and Path(options.trigger).exists():
                raise RuntimeError("a string broke")
            super().fill(*arguments)  # type: ignore[arg-type]

    return Wrapped(replace(request, options=TorchOptions()))


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers the same as `torch`."""
    return replace(torch_attention(), options=Options, build=build)
