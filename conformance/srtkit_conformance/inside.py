"""A plugin held to its contract from inside a test of its own repository, also with other options than the defaults.

Knows no pytest. A crash ends the test's process: whoever wants a report uses `srt conformance run`.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from srtkit_conformance.catalogue import suite_for
from srtkit_conformance.find import Subject, load_target
from srtkit_conformance.runner import Runner


def shortcomings(plugin: str, *, level: int = 1, **options: object) -> list[str]:
    """Run every check up to `level` on "kind:name"; returns "check: what is wrong" for each that is not good.

    `options` are the plugin's; a check that starts processes of its own runs with the defaults all the same.
    Raises the `PluginError` that fits when the plugin cannot be loaded, pydantic's `ValidationError` for
    options that it does not have.
    """
    kind, _, name = plugin.partition(":")
    suite, subject = suite_for(kind), Subject(kind, name)
    wrong = []
    with tempfile.TemporaryDirectory(prefix="srt-conf-") as path:  # short: the paths of local sockets are limited
        target = load_target(subject, suite, Path(path))
        target = replace(target, options=type(target.options).model_validate(options))
        runner = Runner(subject, suite, target, Path(path))
        for check in suite.checks():
            if check.level <= level:
                result = runner.run(check if check.forks else replace(check, isolated=False))
                if not result.good:
                    wrong.append(f"{result.id}: {result.message}")
    return wrong
