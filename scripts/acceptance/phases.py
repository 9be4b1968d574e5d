"""The phases of a short acceptance run, for a GPU that is there for ten minutes: what decides most, first.

Each phase yields its figures as it finds them, so that a phase whose time is up keeps what it has, and what it omits
with the reason. On a CPU the same code runs with small models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Queue

from acceptance.context import Context
from acceptance.engine_phases import cached_turns, decode_calibration, kept_cache
from acceptance.measure import Found, tried
from acceptance.parts import PARTS, feature, take_step
from acceptance.trainer_phases import predicted_memory, trainer_matrix
from acceptance.weight_phases import copy_rates, one_rank, publish_breakdown
from bench.report import Figure, Omitted

LAST = ("engine_throughput", "transports", "resume", "placement_shared")
"""Parts of the whole acceptance run that have never run on a GPU; the last phase runs them at once."""
LAST_RUNS = ("commitments", "critic")
"""What has never run of the part `features`."""
LAST_PRESETS = ("online_dpo", "online_ipo")
SHARE = 0.08
"""Of a GPU, what each engine of the last phase takes."""


def never_run(context: Context) -> Iterator[Found]:
    """Parts of the whole acceptance run that have never run on a GPU, all at once: whether they pass, not how fast."""
    works: dict[str, Callable[[Context], Iterable[Found]]] = {"resume": PARTS["resume"]}
    if context.gpus:
        works = {name: PARTS[name] for name in LAST}
        works |= {name: partial(feature, name=name) for name in LAST_RUNS}
    ended: Queue[list[Found]] = Queue()

    def passes(name: str) -> None:
        folder = context.folder / f"at-once-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        ended.put(list(tried(name, partial(_passed, name, works[name], Context(folder, share=SHARE)))))

    with ThreadPoolExecutor(len(works)) as pool:
        running = [pool.submit(passes, name) for name in works]
        # These take their steps in this process, one after the other.
        for preset in LAST_PRESETS:
            yield from tried(preset, partial(_preset, context, preset))
        for _ in running:
            yield from ended.get()


def _passed(name: str, work: Callable[[Context], Iterable[Found]], context: Context) -> Iterator[Found]:
    found = list(work(context))
    yield Figure(name, 1.0, "passed")
    # Some run beside others: of their figures only whether they are there says something.
    yield from (one for one in found if isinstance(one, Omitted))


def _preset(context: Context, preset: str) -> Iterator[Found]:
    if problem := take_step(context, preset):
        raise AssertionError(problem)
    yield Figure(preset, 1.0, "passed")


Phase = Callable[[Context], Iterator[Found]]
PHASES: dict[str, tuple[float, Phase]] = {
    "copy_rates": (15, copy_rates),
    "trainer_matrix": (145, trainer_matrix),
    "publish_breakdown": (70, publish_breakdown),
    "decode_calibration": (75, decode_calibration),
    "cached_turns": (60, cached_turns),
    "kept_cache": (65, kept_cache),
    "predicted_memory": (55, predicted_memory),
    "one_rank": (20, one_rank),
    "never_run": (85, never_run),
}
"""Seconds that each may take, and what it does, in the order in which they run."""
