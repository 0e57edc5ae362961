"""Checks that end badly, or in a child, one for each way in which that can happen."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time

from srtkit_conformance.check import Failed, Outcome, SuiteError, check
from srtkit_conformance.target import Target

CLAUSE = "toy/1.0: it does as it is told"


@check("prefix_cache.toy_fails", level=2, clause=CLAUSE, explain="It always does.")
def fails(target: Target) -> Outcome:
    print("\x1b[31mlast words")
    raise Failed("always fails", observed=2, limit=1)


@check("prefix_cache.toy_raises", level=2, clause=CLAUSE, explain="A plugin's bug.")
def raises(target: Target) -> Outcome:
    error = KeyError("page")
    error.add_note("with the page 7")
    raise error


@check("prefix_cache.toy_exits", level=2, clause=CLAUSE, explain="A plugin that ends the process the polite way.")
def exits(target: Target) -> Outcome:
    raise SystemExit(3)


@check("prefix_cache.toy_alone", level=2, clause=CLAUSE, explain="Runs in a child.", isolated=True)
def alone(target: Target) -> Outcome:
    return {"pid": os.getpid(), "seed": target.seed, "name": target.name}


@check("prefix_cache.toy_crashes", level=3, clause=CLAUSE, explain="A null pointer.", isolated=True)
def crashes(target: Target) -> Outcome:
    ctypes.string_at(0)
    return None


@check("prefix_cache.toy_hangs", level=3, clause=CLAUSE, explain="Waits for ever.", isolated=True, seconds=1.0)
def hangs(target: Target) -> Outcome:
    child = subprocess.Popen(["sleep", "60"])
    (target.folder / "pid").write_text(str(child.pid))
    time.sleep(60)
    return None


@check("prefix_cache.toy_vanishes", level=3, clause=CLAUSE, explain="Ends without a word.", isolated=True)
def vanishes(target: Target) -> Outcome:
    print("about to go", flush=True)
    os._exit(5)


@check("prefix_cache.toy_serves", level=2, clause=CLAUSE, explain="Says where, and how often it was asked there.")
def serves(target: Target) -> Outcome:
    target.extra["asked"] = target.extra.get("asked", 0) + 1
    return {"pid": os.getpid(), "asked": target.extra["asked"]}


@check("prefix_cache.toy_aborts", level=2, clause=CLAUSE, explain="A kernel that gives up.")
def aborts(target: Target) -> Outcome:
    print("last words")
    os.abort()


@check("prefix_cache.toy_sleeps", level=2, clause=CLAUSE, explain="A kernel that never ends.", seconds=1.0)
def sleeps(target: Target) -> Outcome:
    time.sleep(60)
    return None


@check("prefix_cache.toy_leaves", level=2, clause=CLAUSE, explain="What it has started goes on without it.")
def leaves(target: Target) -> Outcome:
    """The other end of the pipe stays open in the process that it leaves behind."""
    if os.fork():
        os._exit(6)
    time.sleep(60)
    return None


@check("prefix_cache.toy_nonsense", level=4, clause=CLAUSE, explain="The suite is at fault.")
def nonsense(target: Target) -> Outcome:
    return 42  # type: ignore[return-value]


@check("prefix_cache.toy_at_fault", level=4, clause=CLAUSE, explain="The suite is at fault.", isolated=True)
def at_fault(target: Target) -> Outcome:
    raise SuiteError("the reference contradicts itself")
