"""The official plugins by name, and what stands where neither file nor platform names one: `catalogue.toml`.

For remedies and defaults only: nothing in it is imported, and third parties need no entry.
"""

import re
import tomllib
from importlib.resources import files

_TABLES = tomllib.loads(files("srtkit.plugins").joinpath("catalogue.toml").read_text("utf-8"))
# "attention:torch" → its distribution.
OFFICIAL: dict[str, str] = {part: name for name, parts in _TABLES["official"].items() for part in parts}
# Kind → names in order.
DEFAULTS: dict[str, list[str]] = _TABLES["defaults"]

# How to install everything that serving on a CPU needs.
CPU_SET = "pip install 'srtkit-core[cpu]'"


def normal_name(name: str) -> str:
    """A plugin's or a distribution's name in the one form that is compared: lower case, hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def official_names(kind: str) -> list[str]:
    """The official plugins of a kind."""
    return [part.removeprefix(f"{kind}:") for part in OFFICIAL if part.startswith(f"{kind}:")]
