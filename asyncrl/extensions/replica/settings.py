"""The setting of a ledger's second place, a key of `[buffer]`."""

from __future__ import annotations

from asyncrl.config_sections import Section, Seldom


class ReplicaConfig(Section):
    """A key of `[buffer]`."""

    replica: Seldom[str] = ""
    """Folder on another node's disk, mounted here, or address of `asyncrl serve replica` there, which gets every change
    before it is acknowledged: if the buffer's node is lost, `asyncrl restore` makes the ledger of it."""
