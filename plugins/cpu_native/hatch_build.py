"""The build hook: compiles the kernels for a wheel or an editable install.

Without a compiler it says so and goes on: the plugins then say at start why they are not there.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `_kernels.so` and the platform's tag. No Python headers are used: one wheel for every Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Raises CalledProcessError where the compiler refuses the source."""
        spec = importlib.util.spec_from_file_location("build_kernels", Path(self.root, "build_kernels.py"))
        assert spec is not None and spec.loader is not None
        build_kernels = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build_kernels)
        if not build_kernels.up_to_date():
            compiler = build_kernels.compiler()
            if compiler is None:
                self.app.display_warning("no C++ compiler found: cpu-native is installed without its kernels")
                return
            build_kernels.build(compiler)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append("*.so")
