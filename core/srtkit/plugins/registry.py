"""What is installed, from metadata alone: no plugin is imported here.

Keeps distribution and version of every entry point (a cache would lose them and serve stale ones), knows
other majors, duplicates and broken metadata, and words the refusals of rules 1, 4 and 5.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from srtkit.config.hints import did_you_mean
from srtkit.plugins.catalogue import CPU_SET, OFFICIAL, normal_name, official_names
from srtkit.spec.errors import PluginDuplicate, PluginIncompatible, PluginNotFound
from srtkit.spec.versions import CONTRACTS

_GROUP = re.compile(r"srtkit\.([a-z_]+)\.v(\d+)")


@dataclass(frozen=True, order=True)
class Offer:
    """One entry point of one distribution. `name` is normalised, `value` leads to the light module."""

    kind: str
    name: str
    major: int
    value: str
    distribution: str
    version: str

    @property
    def part(self) -> str:
        """How messages name it: "attention:aiter"."""
        return f"{self.kind}:{self.name}"

    @property
    def group(self) -> str:
        """Its entry-point group."""
        return f"srtkit.{self.kind}.v{self.major}"

    @property
    def speaks_ours(self) -> bool:
        """Whether its group carries this core's major of the contract."""
        return self.kind in CONTRACTS and self.major == CONTRACTS[self.kind].major

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}, entry point {self.group}: {self.name} = {self.value}"


@dataclass(frozen=True)
class Registry:
    """All offers, sorted; `faults` are sentences about metadata that could not be read or is hidden."""

    offers: tuple[Offer, ...]
    faults: tuple[str, ...] = ()

    def of(self, kind: str) -> tuple[Offer, ...]:
        """The offers of a kind that speak this core's major."""
        return tuple(offer for offer in self.offers if offer.kind == kind and offer.speaks_ours)

    def find(self, kind: str, name: str) -> Offer:
        """The one offer of that name; `name` may be "distribution:name".

        Raises `PluginNotFound`, `PluginIncompatible` (only another major is installed) or
        `PluginDuplicate`.
        """
        if kind not in CONTRACTS:
            hint = did_you_mean(kind, CONTRACTS) or f"kinds: {', '.join(CONTRACTS)}"
            raise PluginNotFound(f"{kind}:{name}", f'there is no kind "{kind}"', hint)
        wanted, _, bare = name.rpartition(":")
        bare = normal_name(bare)
        named = [offer for offer in self.offers if (offer.kind, offer.name) == (kind, bare)]
        if wanted:
            named = [offer for offer in named if offer.distribution == normal_name(wanted)]
        ours = [offer for offer in named if offer.speaks_ours]
        if len(ours) == 1:
            return ours[0]
        if ours:
            cause = "is offered more than once: by " + " and ".join(f"{o.distribution} {o.version}" for o in ours)
            choice = f'choose one: use = "{ours[0].distribution}:{bare}", or uninstall the other'
            raise PluginDuplicate(ours[0].part, cause, choice)
        if named:
            offer, major = named[-1], CONTRACTS[kind].major
            older = "srtkit-core" if offer.major > major else offer.distribution
            cause = f"speaks {kind} v{offer.major}, this core speaks v{major} ({offer})"
            raise PluginIncompatible(offer.part, cause, f"pip install --upgrade {older}")
        raise self._not_found(kind, bare, wanted)

    def _not_found(self, kind: str, name: str, wanted: str) -> PluginNotFound:
        part = f"{kind}:{name}"
        if kind != "cli" and not any(offer.kind != "cli" for offer in self.offers):
            return PluginNotFound(part, "no plugin is installed", CPU_SET)
        if wanted:
            others = ", ".join(offer.distribution for offer in self.of(kind) if offer.name == name) or "nobody"
            cause = f"no distribution {wanted} offers it; it is offered by {others}"
            return PluginNotFound(part, cause, f"pip install {wanted}")
        if part in OFFICIAL:
            return PluginNotFound(part, "is not installed", f"pip install {OFFICIAL[part]}")
        installed = [offer.name for offer in self.of(kind)]
        elsewhere = {one.kind for one in self.offers if one.name == name}
        hint = f"it is a name of {', '.join(sorted(elsewhere))};" if elsewhere else ""
        hint = hint or did_you_mean(name, {*installed, *official_names(kind)})
        listed = f"installed: {', '.join(installed) or 'none'}; `srt plugins list --available` shows more"
        return PluginNotFound(part, "no installed distribution offers it", f"{hint} {listed}".strip())


def discover(path: Sequence[str] | None = None) -> Registry:
    """Read the entry points of what is installed on `path`, by default `sys.path`."""
    where: dict[str, Any] = {} if path is None else {"path": list(path)}
    offers: list[Offer] = []
    faults: list[str] = []
    seen: dict[str, str] = {}
    for dist in importlib.metadata.distributions(**where):
        folder = dist.locate_file("")
        try:
            if "srtkit." not in (dist.read_text("entry_points.txt") or ""):
                continue  # reading the names and versions of everything installed takes a tenth of a second
            name, found = normal_name(dist.metadata["Name"]), list(_offers(dist))
        except Exception as error:  # whatever a damaged folder makes the parser raise must not hide the others
            faults.append(f"a distribution in {folder} has broken metadata: {type(error).__name__}: {error}")
            continue
        this = f"{dist.version} in {folder}"
        if name not in seen:
            seen[name] = this
            offers += found
        elif seen[name] != this:  # import takes the first on the path, so must we
            faults.append(f"{name} {this} is hidden by {seen[name]}")
    return Registry(tuple(sorted(offers)), tuple(faults))


def _offers(dist: importlib.metadata.Distribution) -> Iterator[Offer]:
    name, version = dist.metadata["Name"], dist.metadata["Version"]
    if not (name and version):
        raise ValueError("METADATA lacks a name or a version")
    for entry in dist.entry_points:
        if match := _GROUP.fullmatch(entry.group):
            yield Offer(match[1], normal_name(entry.name), int(match[2]), entry.value, normal_name(name), version)
