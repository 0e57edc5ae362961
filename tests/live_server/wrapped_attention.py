"""The source of a plugin that tests install under a name of their own: `torch`'s attention, slowed or failing.

`fail` is when it raises: "build", "import" (there, of a module that is missing), or "step" once the file `trigger`
exists. While the file `brake` exists, a step takes a twentieth of a second longer.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

import srtkit_plugin_attention_torch as torch_plugin
from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionDescriptor
from srtkit.spec.hookspecs import hookimpl


class Options(BaseModel):
    """`[attention.options]` of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fail: Literal["", "import", "build", "step"] = ""
    trigger: str = ""
    brake: str = ""


def build(request: AttentionBuild) -> AttentionBackend:
    """`torch`'s backend, wrapped."""
    from srtkit_plugin_attention_torch.backend import TorchAttention

    options = request.options
    assert isinstance(options, Options)
    if options.fail == "import":
        import no_such_vendor.kernels  # type: ignore[import-not-found]  # noqa: F401
    if options.fail == "build":
        raise RuntimeError("the strings are out of tune")

    class Wrapped(TorchAttention):
        def fill(self, *arguments: object) -> None:
            if options.brake and Path(options.brake).exists():
                time.sleep(0.05)
            if options.fail == "step" and Path(options.trigger).exists():
                raise RuntimeError("a string broke")
            super().fill(*arguments)  # type: ignore[arg-type]

    return Wrapped(replace(request, options=torch_plugin.Options()))


@hookimpl
def srtkit_attention() -> AttentionDescriptor:
    """Offers the same as `torch`."""
    return replace(torch_plugin.srtkit_attention(), options=Options, build=build)
