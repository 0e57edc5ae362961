"""What is left when a server has ended."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionDescriptor
from srtkit_conformance.mutant import mutant


@mutant(
    "server.kernel_files",
    of="attention:torch",
    sentence="leaves compiled kernels in the folder for temporary files",
    killed_by=("server.end",),
)
def kernel_files(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """A folder a build, which nobody removes."""

    def build(given: AttentionBuild) -> AttentionBackend:
        Path(tempfile.mkdtemp(prefix="kernels-"), "attend.o").write_bytes(b"code")
        return descriptor.build(given)

    return replace(descriptor, build=build)
