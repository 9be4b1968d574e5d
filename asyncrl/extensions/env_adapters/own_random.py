"""Global random generators, private to one environment."""

from __future__ import annotations

import random
import threading
from types import TracebackType
from typing import Any

import numpy as np


class OwnRandom:
    """A context in which the global generators of `random` and NumPy continue an environment's own sequence.

    Libraries that draw from the global generators would otherwise disturb each other's episodes. Only one context is
    active at a time in a process; other threads that draw from the global generators meanwhile see an environment's
    sequence.
    """

    _lock = threading.Lock()

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._own: tuple[Any, Any] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        self._outer = (random.getstate(), np.random.get_state())
        if self._own is None:
            random.seed(self._seed)
            np.random.seed(self._seed % 2**32)
        else:
            random.setstate(self._own[0])
            np.random.set_state(self._own[1])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own = (random.getstate(), np.random.get_state())
        random.setstate(self._outer[0])
        np.random.set_state(self._outer[1])
        self._lock.release()
