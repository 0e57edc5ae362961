"""Who may import whom, checked by import-linter.

Writes the contracts for the distributions that exist and runs `lint-imports` on them, so that a new plugin
is under the rules the moment its folder appears. `--print` shows the contracts instead. Knows names and
imports only.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from configparser import ConfigParser
from pathlib import Path

from packaging.requirements import Requirement

from tools.dists import ROOT, Dist, find

TORCH_FREE = ("config", "plugins", "scheduler", "spec", "text")
"""Parts of core that run in processes without torch. `srtkit.spec.layers` is the one exception."""
LOADERS = ("srtkit_conformance", "srtkit_plugin_cli_doctor")
"""They load plugins as core does, to look at them, and run none."""
OF_LOADERS = ("srtkit.config", "srtkit.plugins")
VENDOR = ("torch", "transformers", "triton")


def core_modules(root: Path = ROOT) -> list[str]:
    """The direct children of `srtkit` apart from `spec`, which is all that a plugin may import."""
    children = sorted((root / "core" / "srtkit").iterdir())
    packages = [child.name for child in children if (child / "__init__.py").exists()]
    modules = [child.stem for child in children if child.suffix == ".py" and child.stem not in ("__init__", "__main__")]
    return [f"srtkit.{name}" for name in (*packages, *modules) if name != "spec"]


def declared(dists: Sequence[Dist]) -> list[str]:
    """Imports between plugins that are allowed because the importing distribution requires the other."""
    by_name = {dist.name: dist for dist in dists if dist.is_plugin}
    return [
        f"{dist.package}{below} -> {by_name[name].package}{below_other}"
        for dist in by_name.values()
        for name in sorted(Requirement(line).name for line in dist.project.get("dependencies", ()))
        if name in by_name
        for below in ("", ".**")  # `**` does not match the package itself
        for below_other in ("", ".**")
    ]


def contracts(dists: Sequence[Dist], core: Sequence[str]) -> dict[str, dict[str, object]]:
    """Contract id → import-linter's settings, for the given distributions and core modules."""
    packages = [dist.package for dist in dists if dist.is_plugin and dist.package not in LOADERS]
    loaders = [dist.package for dist in dists if dist.package in LOADERS]
    return {
        "core-knows-no-plugin": {
            "name": "core imports no plugin",
            "type": "forbidden",
            "source_modules": ["srtkit"],
            "forbidden_modules": [*packages, *loaders],
        },
        "plugins-use-spec": {
            "name": "plugins import srtkit.spec and nothing else of core",
            "type": "forbidden",
            "source_modules": packages,
            "forbidden_modules": [*core, *loaders],
        },
        "plugins-are-independent": {
            "name": "plugins do not import each other unless declared",
            "type": "independence",
            "modules": packages,
            "ignore_imports": declared(dists),
            "unmatched_ignore_imports_alerting": "none",
        },
        "spec-stands-alone": {
            "name": "srtkit.spec imports nothing of core outside itself",
            "type": "forbidden",
            "source_modules": ["srtkit.spec"],
            "forbidden_modules": list(core),
        },
        "torch-free": {
            "name": "scheduler, text, config, discovery and spec import no torch",
            "type": "forbidden",
            "source_modules": [f"srtkit.{part}" for part in TORCH_FREE],
            "forbidden_modules": list(VENDOR),
            "ignore_imports": ["srtkit.spec.layers -> torch", "srtkit.spec.layers.** -> torch"],
            "unmatched_ignore_imports_alerting": "none",
        },
        "no-transformers": {
            "name": "transformers is a test's reference, never a dependency of core",
            "type": "forbidden",
            "source_modules": ["srtkit"],
            "forbidden_modules": ["transformers"],
        },
        **{f"{loader}-stands-outside": _of_loader(loader, packages, core) for loader in loaders},
    }


def _of_loader(loader: str, packages: Sequence[str], core: Sequence[str]) -> dict[str, object]:
    return {
        "name": f"{loader} imports no plugin and nothing that runs one",
        "type": "forbidden",
        "source_modules": [loader],
        "forbidden_modules": [*packages, *(module for module in core if module not in OF_LOADERS)],
    }


def render(dists: Sequence[Dist], core: Sequence[str]) -> ConfigParser:
    """The contracts in the form that `lint-imports` reads."""
    parser = ConfigParser()
    parser["importlinter"] = {
        "root_packages": _lines([dist.package for dist in dists]),
        "include_external_packages": "True",
        "exclude_type_checking_imports": "True",
    }
    for key, settings in contracts(dists, core).items():
        parser[f"importlinter:contract:{key}"] = {
            name: _lines(value) if isinstance(value, list) else str(value) for name, value in settings.items()
        }
    return parser


def _lines(values: Sequence[str]) -> str:
    return "".join(f"\n{value}" for value in values)


def check(parser: ConfigParser, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Runs `lint-imports` on the contracts, with `folder` first on the import path."""
    with tempfile.NamedTemporaryFile("w", suffix=".ini", encoding="utf-8") as file:
        parser.write(file)
        file.flush()
        program = str(Path(sys.executable).with_name("lint-imports"))
        command = [program, "--no-logo", "--no-cache", file.name]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def main(arguments: Sequence[str]) -> int:
    """Runs the check, prints its report and returns its exit code; 0 after `--print`."""
    parser = render(find(), core_modules())
    if "--print" in arguments:
        parser.write(sys.stdout)
        return 0
    done = check(parser)
    print(done.stdout, done.stderr, sep="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
