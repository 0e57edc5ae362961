"""The build hook: compiles the library for a wheel or an editable install.

Without a compiler that can do it, it says so and goes on: the plugin then says at start why it is not there.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `_radix.abi3.so` and its tag: of Python's limited API, so one wheel serves every Python from 3.11 on."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the files are collected."""
        spec = importlib.util.spec_from_file_location("build_library", Path(self.root, "build_library.py"))
        assert spec is not None and spec.loader is not None
        build_library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build_library)
        if not build_library.up_to_date():
            compiler = build_library.compiler()
            try:
                if compiler is None:
                    raise FileNotFoundError("no C++ compiler found")
                build_library.build(compiler)
            except (OSError, subprocess.CalledProcessError) as error:  # of a compiler that is too old, say
                build_library.LIBRARY.unlink(missing_ok=True)  # that of other sources
                self.app.display_warning(f"{error}\nradix-native is installed without its library")
                return
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append("*.so")
