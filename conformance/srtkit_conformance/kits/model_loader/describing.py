"""What the server does with a loader: it describes. Runs in a new process, so it must import no torch itself."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel

from srtkit.spec.model_loader import ModelLoaderDescriptor


def describe_once(descriptor: ModelLoaderDescriptor, options: BaseModel, path: Path) -> None:
    """Ask whether the loader reads that form, and what it says of the model."""
    assert descriptor.accepts(path)
    descriptor.describe(path, options)
