"""Installs the core wheel alone in a fresh environment and asks it what it can do without any plugin.

Core must list, check and explain with neither torch nor a plugin at hand, and must say how to get a set
when it is asked to serve. Needs the wheels of `make wheels`.
"""

from __future__ import annotations

import sys

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
    done = env.run(["python", "-X", "importtime", "-m", "srtkit", "plugins", "list"])
    heavy = sorted(name for name in imported(done.stderr) if name.startswith(HEAVY))
    if heavy:
        result.append(f"`srt plugins list` imports {', '.join(heavy)}")
    done = env.run(["srt", "serve", "--config", QUICKSTART])
    if done.returncode == 0 or "pip install" not in done.stdout + done.stderr:
        result.append(f"`srt serve` without a set does not say what to install:\n{done.stdout}{done.stderr}")
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
