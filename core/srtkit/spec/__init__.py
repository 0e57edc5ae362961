"""The contracts of srtkit: all that a plugin may import.

One file a kind; `hookspecs` has every door on one page. Importing this package, or any module of it
but `srtkit.spec.layers`, imports no torch.
"""

from srtkit.spec.hookspecs import hookimpl
from srtkit.spec.versions import CONTRACTS, Contract

__all__ = ["CONTRACTS", "Contract", "hookimpl"]
