"""Attention backends beside each other on this GPU, each with the page size that is best for it: time of a step.

    python -m bench.gpu.backends --attention aiter triton [--platform rocm] [--out FILE.json]

Steps and shapes are those of `bench.gpu.attention`: 32 query and 8 KV heads of 128 in bfloat16, 64 query heads over
latents with --latent 64. Decode steps are recorded in a graph, others launched one after the other.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from bench.gpu.attention import bench_of, cases, measured, spec_of
from srtkit.spec.attention import AttentionDescriptor, AttentionSpec, check_spec
from srtkit.spec.errors import SrtError
from srtkit_plugin_cli_debug.player import Machine
from srtkit_plugin_cli_debug.plugins import descriptor_of

PAGES = (16, 64, 128)


def best(
    descriptor: AttentionDescriptor, machine: Machine, spec: AttentionSpec, kind: str, shape: tuple[int, int, int]
) -> tuple[int, dict[str, float]]:
    """The fastest page size, and its figures. Raises `SrtError` where the backend refuses."""
    can = descriptor.capabilities(machine.facts)
    found = {}
    for page in (one for one in PAGES if one in can.page_sizes):
        bench = bench_of(descriptor, machine.platform, machine.facts, spec, *shape, page)
        recorded = kind == "decode" and can.capture != "never"
        found[page] = measured(bench, kind, *shape, recorded=recorded)
        del bench
        torch.cuda.empty_cache()
    page = min(found, key=lambda one: found[one]["us"])
    return page, found[page]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--platform", default="rocm")
    parser.add_argument("--attention", nargs="+", required=True, metavar="NAME")
    parser.add_argument("--latent", type=int, default=0, metavar="HEADS")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    machine, spec = Machine(given.platform), spec_of("bfloat16", given.latent)
    descriptors = {name: descriptor_of("attention", name) for name in given.attention}
    for name, one in descriptors.items():
        if problem := check_spec(f"attention:{name}", spec, one.capabilities(machine.facts)):
            parser.error(f"attention:{name}: {problem}")
    lines = []
    for kind, *shape in cases():
        rows, stored, new = shape
        line: dict[str, object] = {"case": f"{kind} {rows} x ({stored} + {new})"}
        for name, descriptor in descriptors.items():
            try:
                page, figures = best(descriptor, machine, spec, kind, (rows, stored, new))
                line[name] = {"page": page, **figures}
            except SrtError as refusal:
                line[name] = refusal.cause
        lines.append(line)
        print(line, flush=True)
    if given.out:
        told = {"device": machine.facts.name, "torch": torch.__version__, "lines": lines}
        given.out.write_text(json.dumps(told, indent=1), "utf-8")


if __name__ == "__main__":
    main()
