"""`calls.safetensors`, which `srt debug calls` plays on the real aiter: it is what the double makes of the calls."""

from __future__ import annotations

from pathlib import Path

import torch

import srtkit_plugin_attention_aiter as plugin
from plugins.attention_aiter.tests.double import Double
from srtkit_plugin_attention_aiter.library import called
from srtkit_plugin_cli_debug.calls import FILE, load

PLAYED = ("decode", "prefill", "unified", "extend")


def test_the_double_makes_the_same_of_them() -> None:
    """In both versions: their arguments are those that every version takes. Otherwise: record.py, anew.

    Up to rounding: torch adds float32 in another order on another CPU (5e-8 was seen).
    """
    recorded = load(Path(plugin.__file__).with_name(FILE))
    for newer in (False, True):
        library = Double("gfx942", newer).library()
        functions = {"{}:{}".format(*called(name, newer=False)[:2]): vars(library)[name] for name in PLAYED}
        assert {call.function for call in recorded} == set(functions)
        for call in recorded:
            assert max(call.play(functions[call.function], torch.device("cpu")).values()) < 1e-5, call.function
