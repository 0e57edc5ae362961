"""What a plugin needs, built as core builds it: others by kind and name, with the options that it gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from pydantic import BaseModel

from srtkit.plugins.loading import load
from srtkit.plugins.registry import discover


def needs_of(descriptor: Any, options: BaseModel, requests: Mapping[str, Any]) -> dict[str, Any]:
    """By role. `requests` holds for each kind what its `build` is given, whatever options stand there.

    Raises the `PluginError` that fits when one is not installed, pydantic's `ValidationError` for wrong options.
    """
    made = {}
    for need in descriptor.needs(options):
        other = _descriptor(need.kind, need.name)
        chosen = other.options.model_validate(need.options)
        request = replace(requests[need.kind], options=chosen, needs=needs_of(other, chosen, requests))
        made[need.role] = other.build(request)
    return made


@cache
def _descriptor(kind: str, name: str) -> Any:
    return load(discover().find(kind, name))
