"""Plugins that do right alone, and wrong in a server. The modules import no torch: see `kits/server/stand_in`."""

MODULES = ("limits", "ends")
