"""Which GPUs each process of a run has: the `[placement]` section, and what follows from the number of GPUs.

    several GPUs    trainer | engine-0 | engine-1 ... | evaluation | left to servers
    one GPU         trainer and engines share it

Processes on different GPUs start together. On a shared GPU they start one after the other, since vLLM measures at its
start how much memory is left for its KV cache: the engines first, each alone, and the trainer when they serve.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from asyncrl.config import Config
from asyncrl.env.config_check import env_services
from asyncrl.errors import ConfigError
from asyncrl.gpus import BY_TURNS, ENGINE_SHARE, visible_env
from asyncrl.services.command import with_trainer, with_workers
from asyncrl.types import MAIN_POLICY

BESIDE_TRAINER = 0.45
"""Share of a GPU's memory that the engines on it take together beside a trainer."""

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of a run's processes, as positions in `gpus`. Everything is empty on a CPU."""

    gpus: Sequence[str] = ()
    """Names as `CUDA_VISIBLE_DEVICES` takes them."""
    trainers: Mapping[str, Numbers] = field(default_factory=dict)
    """By policy, "" for the main one."""
    engines: Mapping[str, Sequence[Numbers]] = field(default_factory=dict)
    """By policy, for each of its engines."""
    evaluation: Numbers = ()
    servers: Numbers = ()
    """Left to servers that are started apart."""
    beside: Mapping[str, Numbers] = field(default_factory=dict)
    """Those of each process that a trainer has for itself, or the workers have, by its role; empty for the trainer's
    first."""
    sleep: bool = False
    """Whether engines and trainer use the memory by turns."""

    @property
    def shared(self) -> bool:
        """True when a trainer and an engine have a GPU in common."""
        return bool(self._training & self._sampling)

    @property
    def engines_first(self) -> bool:
        """True when trainers start only when the engines serve: what they allocated meanwhile would be taken from the
        engines' caches. Where memory is used by turns, they put the engines to sleep before they load a model."""
        return self.shared or self.sleep

    @property
    def engines_in_turn(self) -> bool:
        """True when engines have a GPU in common, and so must start one after the other."""
        every = [number for one in self._all_engines() for number in one]
        return len(every) > len(set(every))

    @property
    def gpu_memory_utilization(self) -> float:
        """Share of a GPU's memory for each engine, the same for all: what the fullest GPU allows."""
        residents = [*self._all_engines(), self.evaluation]
        shares = [ENGINE_SHARE]
        for number in set(chain.from_iterable(residents)):
            beside = BY_TURNS if self.sleep else BESIDE_TRAINER
            whole = beside if number in self._training else ENGINE_SHARE
            shares.append(whole / sum(number in one for one in residents))
        return int(min(shares) * 1000) / 1000

    def trainer_env(self, policy: str = MAIN_POLICY) -> dict[str, str]:
        """Return the variables that show a policy's trainer its GPUs; none on a CPU."""
        return self._env(self.trainers.get(policy, ()))

    def engine_env(self, index: int, policy: str = MAIN_POLICY) -> dict[str, str]:
        """The same for one of a policy's engines."""
        engines = self.engines.get(policy, ())
        return self._env(engines[index] if engines else ())

    def evaluation_env(self) -> dict[str, str]:
        """The same for the engine of periodic evaluations."""
        return self._env(self.evaluation)

    def beside_env(self, role: str, policy: str = MAIN_POLICY) -> dict[str, str]:
        """The same for a process that a policy's trainer has for itself, or the workers have."""
        return self._env(self.beside.get(role) or self.trainers.get(policy, ())[:1])

    def service_env(self) -> dict[str, str]:
        """The same for a process that uses no GPU."""
        return visible_env(()) if self.gpus else {}

    def _env(self, numbers: Numbers) -> dict[str, str]:
        return visible_env([self.gpus[number] for number in numbers]) if self.gpus else {}

    def _all_engines(self) -> Iterator[Numbers]:
        return chain.from_iterable(self.engines.values())

    @property
    def _training(self) -> set[int]:
        return set(chain.from_iterable(self.trainers.values()))

    @property
    def _sampling(self) -> set[int]:
        return set(chain.from_iterable(self._all_engines()))

    def __str__(self) -> str:
        """One line for the user."""
        if not self.gpus:
            return f"no GPU is used{', engine and trainer work by turns' if self.sleep else ''}"
        parts = []
        for policy, numbers in self.trainers.items():
            parts.append(f"{prefixed(policy, 'trainer')} {_ranges(numbers)}")
        for policy, engines in self.engines.items():
            parts += [f"{prefixed(policy, f'engine-{i}')} {_ranges(one)}" for i, one in enumerate(engines)]
        if self.evaluation:
            parts.append(f"evaluation {_ranges(self.evaluation)}")
        for role, numbers in self.beside.items():
            parts += [f"{role.replace('_', ' ')} {_ranges(numbers)}"] if numbers else []
        if self.servers:
            parts.append(f"servers {_ranges(self.servers)}")
        beside = set(chain.from_iterable(self.beside.values()))
        used = self._training | self._sampling | beside | {*self.evaluation, *self.servers}
        if unused := [number for number in range(len(self.gpus)) if number not in used]:
            parts.append(f"unused {_ranges(unused)} (engine.count and train.ranks say how many are used)")
        turns = ", by turns" if self.sleep else ""
        both = self._training & self._sampling
        shared = f" (shared{turns}, engines take {self.gpu_memory_utilization:g})" if both else ""
        return f"{_of(len(self.gpus))}: {', '.join(parts)}{shared}"


def env_names(config: Config, count: int = 0) -> list[str]:
    """Return the names of the environment services: of those at the start, or of the first `count`.

    A run whose sessions are in its rollout workers has none.
    """
    at_start = env_services(config)
    if not at_start:
        return []
    count = count or at_start
    first = "env" if at_start == 1 else "env-0"
    return [first, *(f"env-{index}" for index in range(1, count))][:count]


def plan(config: Config, gpus: Sequence[str]) -> Placement:
    """Return where a run's processes go among `gpus`. Raises `ConfigError` naming keys and numbers.

    gpus: those the launcher itself may use; with none the section chooses nothing.
    """
    section = config.placement
    policies = {name: config.policy(name) for name in config.policy_names}
    if not gpus:
        return Placement(sleep=section.sleep is True)
    rows = (*with_trainer(config), *with_workers(config))
    beside = {row.name: tuple(getattr(section, row.name)) for row in rows}
    for key in ("trainer", "engines", "evaluation", *beside, "servers"):
        _check_numbers(key, getattr(section, key), len(gpus))
    free = _Free(len(gpus), [*section.servers, *chain.from_iterable(beside.values())])
    trainers = _trainers(policies, section.trainer, section.engines, free)
    engines = _engines(config, policies, free, trainers)
    evaluation = _evaluation(config, free, engines)
    shared = set(chain.from_iterable(trainers.values())) & set(_flat(engines))
    placement = Placement(
        gpus, trainers, engines, evaluation, tuple(section.servers), beside,
        _by_turns(config, bool(shared)),
    )  # fmt: skip
    if "engine" in config.numbers and (shared or placement.engines_in_turn or placement.sleep):
        raise ConfigError(
            f"scale.engine = {list(config.numbers['engine'])}: an engine that starts while others use its GPU finds no "
            f"memory; have a GPU for each that there may be ({_there_are(len(gpus))}), or leave it out"
        )
    if placement.sleep and set(chain.from_iterable(trainers.values())) & set(evaluation):
        raise ConfigError(
            f"eval.every={config.eval.every}: an evaluation would need memory of a GPU that engine and trainer use by "
            "turns; give it one of its own (placement.evaluation), or set placement.sleep=false"
        )
    return placement


def placed(config: Config, placement: Placement, part: float = 1.0) -> Config:
    """Return the configuration with the values that follow from the placement in place of "auto".

    part: of the share of a GPU's memory that engines take where nothing else is said.
    """
    changes: dict[str, object] = {"placement": config.placement.model_copy(update={"sleep": placement.sleep})}
    if config.engine.gpu_memory_utilization == "auto":
        share = int(placement.gpu_memory_utilization * part * 1000) / 1000
        changes["engine"] = config.engine.model_copy(update={"gpu_memory_utilization": share})
    return config.model_copy(update=changes)


class _Free:
    """The GPUs that are not given away yet, in order."""

    def __init__(self, count: int, servers: Sequence[int]) -> None:
        self.count = count
        self.left = [number for number in range(count) if number not in servers]
        self.alone = count == 1

    def take(self, number: int) -> Numbers:
        """Return the first so many and give them away."""
        taken, self.left = tuple(self.left[:number]), self.left[number:]
        return taken

    def remove(self, numbers: Sequence[int]) -> None:
        """Give these away."""
        self.left = [number for number in self.left if number not in numbers]


def _trainers(
    policies: Mapping[str, Config], given: Sequence[int], engines: Sequence[int], free: _Free
) -> dict[str, Numbers]:
    ranks = {name: policy.train.ranks for name, policy in policies.items()}
    needed, sum_text = sum(ranks.values()), _sum_of("train.ranks", ranks)
    for name, count in ranks.items():
        if count > free.count:
            raise ConfigError(
                f"{setting_of(name, 'train.ranks')} = {count} needs as many GPUs, {_there_are(free.count)}"
            )
    if given:
        if len(given) != needed:
            raise ConfigError(f"placement.trainer: {sum_text} needs {_of(needed)}, got {list(given)}")
        chosen = list(given)
        free.remove(given)
    elif free.alone:
        return dict.fromkeys(policies, (0,))
    else:
        free.remove(engines)
        left = len(free.left)
        chosen = list(free.take(needed))
        if len(chosen) < needed:
            raise ConfigError(f"{sum_text} needs {_of(needed)}, {_left(left, free)}")
    found = {name: tuple(chosen.pop(0) for _ in range(count)) for name, count in ranks.items()}
    for numbers in found.values():
        _check_apart("placement.trainer", numbers)
    return found


def _engines(
    config: Config, policies: Mapping[str, Config], free: _Free, trainers: Mapping[str, Numbers]
) -> dict[str, Sequence[Numbers]]:
    serving = {
        name: p for name, p in policies.items() if name == MAIN_POLICY or not config.shares_engines(name)
    }
    sizes = {name: [policy.engine.ranks] * policy.most("engine") for name, policy in serving.items()}
    needed = sum(map(sum, sizes.values()))
    sum_text = " + ".join(
        f"{_engine_key(name, p)} = {p.most('engine')} x {setting_of(name, p.engine.said_ranks)}"
        for name, p in serving.items()
    )
    given = config.placement.engines
    if given:
        if len(given) != needed:
            raise ConfigError(f"placement.engines: {sum_text} needs {_of(needed)}, got {list(given)}")
        chosen = list(given)
        free.remove(given)
    elif free.alone:
        if any(size > 1 for one in sizes.values() for size in one):
            raise ConfigError(f"{sum_text} needs {_of(needed)}, there is 1")
        return {name: [(0,)] * len(one) for name, one in sizes.items()}
    else:
        left = len(free.left)
        chosen = list(free.take(needed))
        if len(chosen) < needed:
            ranks = {name: len(numbers) for name, numbers in trainers.items()}
            raise ConfigError(
                f"{sum_text} need {_of(needed)}, {left} {'is' if left == 1 else 'are'} left beside "
                f"{_sum_of('train.ranks', ranks)} (of {free.count}); lower one of them, or let trainer and engines "
                "share GPUs by naming them in placement.trainer and placement.engines"
            )
    found: dict[str, Sequence[Numbers]] = {
        name: [tuple(chosen.pop(0) for _ in range(size)) for size in one] for name, one in sizes.items()
    }
    for numbers in chain.from_iterable(found.values()):
        _check_apart("placement.engines", numbers)
    return found


def _evaluation(config: Config, free: _Free, engines: Mapping[str, Sequence[Numbers]]) -> Numbers:
    """Return the GPUs of periodic evaluations: those given, what is left, or those of the last engine."""
    given, needed = config.placement.evaluation, config.engine.ranks
    if not config.eval.every:
        return ()
    if given:
        if len(given) != needed:
            raise ConfigError(
                f"placement.evaluation: {config.engine.said_ranks} needs {_of(needed)}, got {list(given)}"
            )
        free.remove(given)
        return tuple(given)
    return free.take(needed) if len(free.left) >= needed else tuple(engines[MAIN_POLICY][-1])


def _by_turns(config: Config, shared: bool) -> bool:
    if config.placement.sleep != "auto":
        return config.placement.sleep
    able = config.engine.weight_transfer == "shared_file" and not config.policies and not config.eval.every
    return shared and able and config.train.schedule == "synchronous"


def _check_numbers(key: str, numbers: Sequence[int], count: int) -> None:
    wrong = [number for number in numbers if number >= count]
    if wrong:
        raise ConfigError(
            f"placement.{key}: there is no GPU {wrong[0]}, {_there_are(count)} (0 to {count - 1})"
        )


def _check_apart(key: str, numbers: Numbers) -> None:
    """Refuse one GPU for two ranks of a process group, which NCCL cannot serve. Raises `ConfigError`."""
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"{key}: the ranks of one trainer or engine need a GPU each, got {list(numbers)}")


def _flat(engines: Mapping[str, Sequence[Numbers]]) -> list[int]:
    return [number for one in engines.values() for numbers in one for number in numbers]


def setting_of(policy: str, key: str) -> str:
    """Return how a policy's setting is named in the recipe."""
    return key if policy == MAIN_POLICY else f"policies.{policy}.{key}"


def _engine_key(policy: str, config: Config) -> str:
    """Return the key that says for how many engines GPUs are set aside."""
    return "scale.engine[1]" if "engine" in config.numbers else setting_of(policy, "engine.count")


def prefixed(policy: str, name: str) -> str:
    """Return the name of a policy's process, which is `name` for the main policy."""
    return name if policy == MAIN_POLICY else f"{policy}-{name}"


def _sum_of(key: str, counts: Mapping[str, int]) -> str:
    return " + ".join(f"{setting_of(name, key)} = {count}" for name, count in counts.items())


def _of(count: int) -> str:
    return _count(count, "GPU")


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _there_are(count: int) -> str:
    return f"there {'is' if count == 1 else 'are'} {count}"


def _left(left: int, free: _Free) -> str:
    return f"{left} of {free.count} {'is' if left == 1 else 'are'} left"


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers such as 0, 1, 2, 5 as "0-2+5"."""
    ordered = sorted(set(numbers))
    starts = [ordered[0], *(b for a, b in pairwise(ordered) if b > a + 1)]
    ends = [*(a for a, b in pairwise(ordered) if b > a + 1), ordered[-1]]
    return "+".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
