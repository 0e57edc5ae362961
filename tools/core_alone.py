"""Installs the core wheel alone in a fresh environment and asks it what it can do without any plugin.

With neither torch nor a plugin at hand core must list, describe the settings file, and find a mistake in one. Of a
file without mistakes, which needs plugins, it must say how to get them: when it checks, explains and serves it.
Needs the wheels of `make wheels`.
"""

from __future__ import annotations

import sys

from srtkit.spec.errors import ConfigError, PluginNotFound
from tools.dists import ROOT, find
from tools.fresh_env import FreshEnv, fresh_env
from tools.wheels import wheel_of

QUICKSTART = str(ROOT / "configs" / "quickstart.toml")
ANSWERS = (
    ["srt", "--help"],
    ["srtkit", "--help"],
    ["srt", "--version"],
    ["srt", "plugins", "list"],
    ["srt", "plugins", "list", "--json"],
    ["srt", "config", "schema"],
)
"""Commands that must succeed with core alone."""
REFUSED = (
    ["config", "check", QUICKSTART],
    ["explain", "--config", QUICKSTART],
    ["serve", "--config", QUICKSTART],
)
"""Commands of `srt` that must end with what to install."""
MISTAKEN = ["config", "check", QUICKSTART, "--set", "server.prot=1"]
LIGHT = (["--help"], ["plugins", "list"], ["config", "check", QUICKSTART])
"""Commands of `srt` that import nothing of `HEAVY`."""
HEAVY = ("torch", "transformers", "triton", "srtkit_plugin_")


def imported(importtime: str) -> set[str]:
    """Module names in the output of `python -X importtime`."""
    lines = (line for line in importtime.splitlines() if line.startswith("import time:"))
    return {line.rsplit("|", 1)[-1].strip() for line in lines}


def faults(env: FreshEnv) -> list[str]:
    """What core alone does wrong, a sentence each."""
    result = []
    for command in ANSWERS:
        done = env.run(command)
        if done.returncode:
            result.append(f"`{' '.join(command)}` ends with {done.returncode}:\n{done.stderr}")
    for command in REFUSED:
        done = env.run(["srt", *command])
        if done.returncode != PluginNotFound.exit_code or "pip install" not in done.stderr:
            said = f"{done.stdout}{done.stderr}"
            result.append(f"`srt {' '.join(command)}` without a set does not say what to install:\n{said}")
    done = env.run(["srt", *MISTAKEN])
    if done.returncode != ConfigError.exit_code or "server.prot" not in done.stderr:
        result.append(f"`srt {' '.join(MISTAKEN)}` does not find the mistake:\n{done.stdout}{done.stderr}")
    for command in LIGHT:
        done = env.run(["python", "-X", "importtime", "-m", "srtkit", *command])
        heavy = sorted(name for name in imported(done.stderr) if name.startswith(HEAVY))
        if heavy:
            result.append(f"`srt {' '.join(command)}` imports {', '.join(heavy)}")
    return result


def main() -> int:
    """Prints each fault; 1 if there is one."""
    core = next(dist for dist in find() if dist.package == "srtkit")
    with fresh_env() as env:
        env.install(str(wheel_of(core)))
        found = faults(env)
    for fault in found:
        print(fault, file=sys.stderr)
    print(f"core alone: {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
