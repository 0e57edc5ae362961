"""Runs a check's body in this process and says what came of it. Knows no other process and no pytest."""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from srtkit_conformance.check import Check, Failed, Informational, Outcome, Refused, SuiteError
from srtkit_conformance.result import Result, Verdict
from srtkit_conformance.target import Target


def run_here(target: Target, check: Check, replay: str) -> Result:
    """Run a check on a target. Whatever the plugin raises is a failure of the check.

    `replay` is the command that runs it again. Raises `SuiteError` when the suite is at fault.
    """
    _prepare(target)
    started = time.perf_counter()
    try:
        result = _passed(check, check.body(target))
    except SuiteError:
        raise
    except Failed as failed:
        result = replace(
            result_of(check, "fail", "\n".join([failed.message, *notes(failed)])),
            observed=_text(failed.observed),
            limit=_text(failed.limit),
        )
    except (Exception, SystemExit) as error:
        result = result_of(check, "fail", "\n".join([_raised(error), *notes(error)]))
    return replace(result, seconds=time.perf_counter() - started, replay=replay)


def result_of(check: Check, verdict: Verdict, message: str = "") -> Result:
    """A result without figures."""
    return Result(check.id, check.level, check.clause, verdict, message=message)


def notes(error: BaseException) -> list[str]:
    """What was added to an exception on its way, such as hypothesis' falsifying example."""
    return [note for note in vars(error).get("__notes__", ()) if note.strip()]


def _passed(check: Check, outcome: Outcome) -> Result:
    match outcome:
        case Refused(reason):
            return result_of(check, "refused", reason)
        case Informational(message, figures):
            return replace(result_of(check, "informational", message), figures=dict(figures))
        case None:
            return result_of(check, "pass")
        case Mapping():
            return replace(result_of(check, "pass"), figures=dict(outcome))
    raise SuiteError(f"{check.id} returned {type(outcome).__name__}, which is no outcome of a check")


def _raised(error: BaseException) -> str:
    frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[-4:])
    return f"raised {type(error).__name__}: {error}\n{''.join(frames).rstrip()}"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _prepare(target: Target) -> None:
    """Make `--only` repeat what a whole run did: generators that plugins may use, and hypothesis' memory."""
    random.seed(target.seed)
    np.random.seed(target.seed)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(target.seed)
    if "hypothesis" in sys.modules:
        from hypothesis.configuration import set_hypothesis_home_dir

        set_hypothesis_home_dir(target.folder / "hypothesis")
