"""A run over machines out of namespaces, whose nodes it starts itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.config import Config
from asyncrl.extensions.machines.spread import ClusterOptions
from asyncrl.launch.train import TrainRun
from asyncrl.run.folder import RunFolder

from .namespaces import Machines


class SpreadRun(TrainRun):
    """machines: on which the run is, beside this one; None for this one alone. node_roles: what some of them take, by
    their number; the others take everything."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        *,
        machines: Machines | None = None,
        node_roles: Mapping[int, str] | None = None,
    ) -> None:
        self.machines, self.node_roles = machines, node_roles or {}
        on = None
        if machines is not None:
            # Any free port: another run may have the usual one.
            on = ClusterOptions(len(machines.numbers), machines.address(0), port=0)
        super().__init__(config, folder, on=on)

    def start_node(self, number: int) -> None:
        """Start a machine's node."""
        assert self.machines is not None
        assert self.cluster is not None
        log, roles = self.folder.path / f"node{number}.log", self.node_roles.get(number, "")
        self.machines.join(number, self.cluster.url, self.cluster.credentials.text, log, roles)

    def _gather(self, cluster: Any, model: str) -> None:
        assert self.machines is not None
        for number in self.machines.numbers:
            self.start_node(number)
        super()._gather(cluster, model)
