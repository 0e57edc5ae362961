"""The text of docs/compatibility.md: versions of the contracts, and what each added, from the snapshots in core/api.

Knows Markdown and the snapshots, not the source: what is not released is not on the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from srtkit.spec.versions import CONTRACTS
from tools.api import Version, released, snapshot, text
from tools.api_diff import differences
from tools.api_read import SHARED

HEAD = """<!-- Made by `make docs` from core/api. Edit tools/compatibility.py, not this. -->

# Compatibility

A contract has a version `major.minor` of its own, and the group of its entry points carries the major. A plugin
says in its descriptor which version it was written against.

| the plugin speaks | what happens |
| --- | --- |
| this core's version, or an older minor | it works |
| a newer minor | it works if this core has every feature that its descriptor lists in `requires` |
| another major | it is refused before it is imported, unless core has an adapter |

An older plugin works because a minor adds optional things only: a layer or a step that needs a new one is refused
by that feature's name, before it reaches the plugin.

`tests/frozen/` holds plugins as they were when a version was released. Tests run them against a later minor.

## Versions

| kind | released | entry-point group |
| --- | --- | --- |
"""

RULES = """
## What is held, and by what

`core/api/<kind>-<version>/` holds the names, signatures, bases, fields with defaults and enum members of a
released version; `shared-<version>` holds those of the modules that carry no kind's name. `make api` compares the
source with the newest, and fails

- for an **addition** without a new minor: a name, an optional field behind the others, an optional argument of a
  function, a base class;
- for a **break** without a new major: anything that was there and is not, or is different, and whatever an
  implementation of the older version would lack: a new abstract method, another argument of a method, a field
  without a default. A changed type or default is a break in either direction;
- for a break of what kinds share, unless every kind gets a new major;
- for a **major** above one that has a snapshot, without `core/srtkit/plugins/adapters/<kind>_v<old major>.py`.

It cannot see what a docstring promises. A promise that becomes stricter is a break, too, and review is what finds it;
the conformance suite's older checks must go on passing on the plugins in `tests/frozen/`.

## A new minor

1. Add what is optional, with a default that means "as before". What changes a result gets a feature name: a
   capability or a spec carries it, so that a plugin that does not know it is never asked for it.
2. Raise the minor in `srtkit/spec/versions.py` (of what is shared: in `tools/api.py`), and list the feature there
   if plugins may require it.
3. `python -m tools.release KIND` writes the snapshot. It refuses to change one that is there.
4. `make docs`, and a fragment in `changes/` that names the version.

## A break

It needs a new major, and an adapter so that plugins of the old one work for at least six months more:

1. Raise the major: the group becomes `srtkit.<kind>.v2`, so that both are told apart before anything is imported.
2. What plugins of the old major import stays importable under its name; what replaces it gets another.
3. Core goes on accepting the old group for this kind, and an adapter makes of the old descriptor one of the new
   major: its `build` calls the old `build` and wraps the object. What the old one cannot say is a no. It is the module
   `core/srtkit/plugins/adapters/<kind>_v1.py`, and `make api` fails without it as long as `core/api/` has a snapshot of
   the old major: when support ends, snapshot, adapter and frozen plugin go together, in a change that says so.
4. The frozen plugin of the old major in `tests/frozen/` passes the new suite through the adapter.

No kind has had a break yet. So core has no adapter and refuses every other major.

## What each version added
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| {name} | {', '.join(map(text, released(name)))} | "
        + (f"`{CONTRACTS[name].group}` |" if name in CONTRACTS else "none: it comes with every kind |")
        for name in (*CONTRACTS, SHARED)
    ]
    return HEAD + "\n".join(rows) + "\n" + RULES + "\n".join(["", *_history(), ""])


def _history() -> Iterator[str]:
    for name in (*CONTRACTS, SHARED):
        versions = released(name)
        if versions:
            yield f"- {name} {text(versions[0])}: the first"
        for old, new in pairwise(versions):
            yield f"- {name} {text(new)}: {_since(name, old, new)}"


def _since(name: str, old: Version, new: Version) -> str:
    found = differences(snapshot(name, old), snapshot(name, new))
    return "; ".join(f"`{one.where}` {one.what}" for one in found) or "no name changed"
