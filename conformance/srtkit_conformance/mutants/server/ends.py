"""What is left when requests, or the server, have ended."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from srtkit.spec.attention import AttentionBackend, AttentionBuild, AttentionDescriptor
from srtkit.spec.transport import Frames
from srtkit_conformance.mutant import mutant
from srtkit_conformance.mutants.transport.simple import WrappedSender, around


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


@mutant(
    "server.keeps_workspaces",
    of="attention:torch",
    sentence="makes a workspace for each step, and keeps them all",
    killed_by=("server.soak",),
)
def keeps_workspaces(descriptor: AttentionDescriptor) -> AttentionDescriptor:
    """Right for hours: 256 KiB a step."""

    def build(given: AttentionBuild) -> AttentionBackend:
        from srtkit_conformance.mutants.server.heavy import KeepsWorkspaces

        return KeepsWorkspaces(descriptor.build(given), given)

    return replace(descriptor, build=build)


class LosesAborts(WrappedSender):
    """Takes a request's end for one that has come already."""

    def send(self, frames: Frames, timeout: float = 30.0) -> None:
        if b"Abort" not in bytes(frames[0]):
            self.inner.send(frames, timeout)


loses_aborts = mutant(
    "server.loses_aborts",
    of="transport:zmq",
    sentence="delivers all messages but those that end a request",
    killed_by=("server.given_up",),
    note="nothing is ended, where another ends it and keeps some pages",
)(around(sender=LosesAborts))
