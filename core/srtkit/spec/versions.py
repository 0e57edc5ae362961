"""The contracts and their versions: one line a kind. Knows nothing of plugins or discovery.

A contract version is `major.minor`. The entry-point group carries the major, so a plugin of another
major is recognised without being imported. A minor adds optional things only.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Contract:
    """One extension point: its kind, current version, and the short form used in folder names.

    `features` are the named additions of minors that this core has: a plugin that lists others as
    required is refused, whatever its minor.
    """

    kind: str
    major: int
    minor: int
    short: str
    features: frozenset[str] = frozenset()

    @property
    def group(self) -> str:
        """The entry-point group, e.g. `srtkit.attention.v1`."""
        return f"srtkit.{self.kind}.v{self.major}"

    @property
    def version(self) -> str:
        """`major.minor` as text."""
        return f"{self.major}.{self.minor}"


# All kinds of this core, in wiring order: what stands later may depend on what stands before.
CONTRACTS: dict[str, Contract] = {
    c.kind: c
    for c in (
        Contract("platform", 1, 1, "platform"),
        Contract("attention", 1, 1, "attention"),
        Contract("recurrent", 1, 1, "recurrent"),
        Contract("prefix_cache", 1, 1, "cache"),
        Contract("kv_store", 1, 0, "kv_store"),
        Contract("graph_runner", 1, 0, "graph"),
        Contract("model_loader", 1, 0, "loader"),
        Contract("transport", 1, 0, "transport"),
        Contract("ops", 1, 3, "ops"),
        Contract("models", 1, 1, "models"),
        Contract("routes", 1, 0, "routes"),
        Contract("cli", 1, 0, "cli"),
    )
}
