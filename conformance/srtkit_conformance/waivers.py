"""Known failures: which check, why, and until when. A waiver keeps the exit code, never the level.

[[waiver]]
id = "attention.features.soft_cap"
reason = "the kernel clips at 30; fixed in 1.3"
expires = 2027-03-01
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from srtkit.spec.errors import ConfigError
from srtkit_conformance.result import Result

WaiverState = Literal["used", "expired", "not-needed", "not-run"]


class Waiver(BaseModel):
    """One known failure."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    reason: str = Field(min_length=8)
    expires: date

    def apply(self, result: Result, today: date | None = None) -> Result:
        """`result`, waived if it failed and the waiver has not expired."""
        if result.verdict != "fail":
            return result
        if self.expired(today):
            return replace(result, message=f"{result.message}\nits waiver expired on {self.expires}")
        return replace(result, verdict="waived", waiver=f"{self.reason} (until {self.expires})")

    def expired(self, today: date | None = None) -> bool:
        """Whether its last day has passed."""
        return (today or date.today()) > self.expires


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    waiver: tuple[Waiver, ...] = ()


@dataclass(frozen=True)
class WaiverUse:
    """What a waiver did in a run. One that is `not-needed` must go: the run fails until it does."""

    id: str
    reason: str
    expires: str
    state: WaiverState


def read_waivers(path: Path, known: Collection[str]) -> dict[str, Waiver]:
    """The waivers of a file by check id. Raises `ConfigError` for a bad file or an id not in `known`."""
    try:
        found = _File.model_validate(tomllib.loads(path.read_text("utf-8")))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(str(path), f"is no file of waivers: {error}") from None
    ids = [one.id for one in found.waiver]
    for id_ in ids:
        if id_ not in known:
            raise ConfigError(str(path), f'waives "{id_}", which is no check of this kind', "srt conformance list")
        if ids.count(id_) > 1:
            raise ConfigError(str(path), f'waives "{id_}" twice')
    return {one.id: one for one in found.waiver}


def used(waivers: Iterable[Waiver], results: Iterable[Result]) -> tuple[WaiverUse, ...]:
    """What each waiver did."""
    verdicts = {one.id: one.verdict for one in results}
    return tuple(WaiverUse(one.id, one.reason, str(one.expires), _state(one, verdicts)) for one in waivers)


def _state(waiver: Waiver, verdicts: Mapping[str, str]) -> WaiverState:
    match verdicts.get(waiver.id, "not-run"):
        case "waived":
            return "used"
        case "fail":
            return "expired"
        case "not-run":
            return "not-run"
    return "not-needed"
