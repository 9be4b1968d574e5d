"""A rank of a Tinker server beside rank 0: `python -m asyncrl.extensions.tinker.rank_process OPTIONS`.

OPTIONS: JSON of `RankOptions`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.policies import AdapterSettings, BaseModel, TrainedAdapter
from asyncrl.extensions.tinker.ranks import FailedRankError, HungRankError, LostRankError, Ranks
from asyncrl.extensions.tinker.wire import read_request
from asyncrl.process_hooks import set_threads


@dataclass(frozen=True, slots=True)
class RankOptions:
    """What a rank is started with."""

    model: str
    dtype: str
    context: int
    """Tokens of a row at most."""
    most_tokens: int
    """In a padded batch."""
    size: int
    """How many ranks there are."""
    timeout_s: float
    """How long rank 0 waits for another."""
    threads: int
    """Of torch on the CPU; 0 leaves torch's choice."""
    most_active: int
    """Forms of adapters in memory."""
    folder: str = ""
    """Where the ranks find each other."""
    rank: int = 0
    server: int = 0
    """The process of rank 0."""


def load_base(options: RankOptions) -> BaseModel:
    """Return this rank's copy of the base model. Raises `ConfigError` for one that cannot be trained."""
    base = BaseModel(options.model, options.dtype, options.most_tokens)
    base.context = options.context
    return base


def loaded_file(folder: str, rank: int) -> Path:
    """Return the file that a rank leaves once it has its model."""
    return Path(folder) / f"loaded-{rank}"


class Forms:
    """An adapter of each form that was asked for; its values are rank 0's, and come with each request."""

    def __init__(self, base: BaseModel, most: int) -> None:
        self.base, self.most = base, most
        self._made: OrderedDict[AdapterSettings, TrainedAdapter] = OrderedDict()

    def of(self, settings: AdapterSettings) -> TrainedAdapter:
        """Return an adapter of this form, without a gradient."""
        form = replace(settings, seed=0)
        if form not in self._made:
            while len(self._made) >= self.most:
                self._made.popitem(last=False)[1].remove()
            self._made[form] = self.base.add(form)
        self._made.move_to_end(form)
        found = self._made[form]
        for parameter in found.parameters.values():
            parameter.grad = None
        return found


def follow(base: BaseModel, ranks: Ranks, most_active: int) -> None:
    """Compute what rank 0 asks until it ends. Raises `LostRankError`."""
    base.compute = ranks.compute
    forms = Forms(base, most_active)
    while True:
        settings, body = ranks.next()
        policy = forms.of(AdapterSettings(**settings))
        # Rank 0 knows of them, and tells the client.
        with contextlib.suppress(InputError, FailedRankError, torch.OutOfMemoryError):
            policy.forward_backward(read_request(body))


def main() -> int:
    """Compute until rank 0 ends, which ends this process, too."""
    # Of Ctrl-C and of who ends all processes of a service: rank 0 finishes what it is at, for which it needs this one.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    given: dict[str, Any] = json.loads(sys.argv[1])
    options = RankOptions(**given)
    set_threads(options.threads)
    if torch.cuda.is_available():
        torch.cuda.set_device(options.rank)
    base = load_base(options)
    loaded_file(options.folder, options.rank).touch()
    try:
        ranks = Ranks(Path(options.folder), options.rank, options.size, options.timeout_s)
        follow(base, ranks, options.most_active)
    except LostRankError as error:
        print(f"asyncrl: tinker: rank {options.rank}: {error}", file=sys.stderr, flush=True)
        if isinstance(error, HungRankError) and os.getppid() == options.server:
            # Nobody else ends it, and with it everything that it has started.
            os.kill(options.server, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(main())
