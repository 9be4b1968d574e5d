"""The memory of a whole run: what each GPU's processes take, where it is too much, and which key would mend it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from asyncrl.config import Config, apply_override, parse_config
from asyncrl.errors import ConfigError
from asyncrl.extensions.planning.architectures import architecture
from asyncrl.extensions.planning.engine_memory import GRAPHS, EngineMemory, engine_memory
from asyncrl.extensions.planning.remembered import remembered
from asyncrl.extensions.planning.states import FLOAT32, Kept, Size, gathered_weights, kept
from asyncrl.extensions.planning.step_memory import Activations, StepMemory
from asyncrl.launch.machines.placement import Placement, placed, plan
from asyncrl.launch.models.weights_folder import kept_states
from asyncrl.types import MAIN_POLICY

GIB = 2**30
CONTEXT = int(0.6 * GIB)
"""CUDA's context and the libraries' workspaces, for each process."""
COLLECTIVES = int(0.5 * GIB)
"""NCCL's buffers, where a trainer or an engine has several ranks."""
FRAGMENTATION = 0.05
"""Share of the trainer's own memory that the allocator cannot use."""
NOT_OF_THE_STEP = {
    "betas", "checkpoint_every", "checkpoint_store", "collapse_guard", "learning_rate", "lr_schedule", "max_logp_error",
    "memory_checkpoint_every", "min_nodes", "nodes", "num_steps", "offload", "offload_folder", "on_poison", "ranks",
    "stall_timeout_s", "warmup_steps", "zero_stage",
}  # fmt: skip
"""Keys of `train` that change nothing of what a step computes; of `zero_stage` it matters whether it is 3."""
PASSES = "passes without gradient"
VERSION_BEFORE = "version before, for the check"
UTILIZATION = "engine.gpu_memory_utilization"
TIME = "time"
"""The kind of changes after which the same is learned, only later."""
PARTS = (1.0, 0.78, 0.56)
"""The values of the share that engines take where nothing is said: the first is used with which the run fits. Beside
a trainer that is 0.45, 0.35 or 0.25 of a GPU."""
NAMED = 3
"""So many kinds of changes are named, at most."""
SHORTEST = 2048
"""Tokens of a context below which none is proposed."""
ESTIMATES = ("CUDA contexts", "fragmentation", "NCCL buffers", "engine: largest step", "engine: CUDA graphs")
"""Items that nothing here measures or computes exactly."""


@dataclass(frozen=True, slots=True)
class Item:
    """One part of a GPU's memory at its peak."""

    name: str
    bytes: int


@dataclass(slots=True)
class Device:
    """One GPU, or several that hold the same."""

    gpus: list[int]
    roles: list[str]
    items: list[Item] = field(default_factory=list)
    moment: str = ""
    """When it holds most."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What the run leaves out there for want of memory."""

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.items)


@dataclass(slots=True)
class Prediction:
    """What a run takes, and whether it fits."""

    given: Config
    """Before what follows from the placement was filled in."""
    gpu: int
    gpus: int
    placement: str
    devices: list[Device]
    trainer: dict[str, int]
    """Bytes of a trainer rank at each moment, estimates left out."""
    engine: EngineMemory
    host: dict[str, int] = field(default_factory=dict)
    """Bytes in host memory."""
    utilization: float = 0.0
    """Share of a GPU's memory for each engine."""
    advice: list[str] = field(default_factory=list)
    """Changes of keys with which it would fit."""
    others: list[list[str]] = field(default_factory=list)
    """Changes of other kinds than `advice` that would do as well."""

    @property
    def peak(self) -> int:
        return max(device.bytes for device in self.devices)

    @property
    def problems(self) -> list[str]:
        found = []
        for device in self.devices:
            where = f"GPU {_range(device.gpus)}"
            if device.bytes > self.gpu:
                found.append(
                    f"{where}: {device.bytes / GIB:.1f} GiB are needed, there are {self.gpu / GIB:.1f} GiB"
                )
            found += [f"{where}: {problem}" for problem in device.problems]
        return found

    @property
    def notes(self) -> list[str]:
        """What a run that fits leaves out, with the reason."""
        if not self.fits:
            return []
        return [f"GPU {_range(device.gpus)}: {note}" for device in self.devices for note in device.notes]

    @property
    def fits(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What one rank of a policy's trainer takes."""

    moments: dict[str, list[Item]]
    """At each moment of a step, estimates left out."""
    parameters: int
    """The number of parameters of the policy."""
    trained: int
    """How many of them are trained."""
    offloaded: int
    """Bytes in host memory, of all ranks."""
    state: int
    """Bytes of the master weights and moments of all trained models, of all ranks."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> RankMemory:
        """Return what `dataclasses.asdict` was given."""
        moments = {name: [Item(**item) for item in items] for name, items in data["moments"].items()}
        return cls(moments, data["parameters"], data["trained"], data["offloaded"], data["state"])


@dataclass(frozen=True, slots=True)
class PolicyMemory:
    """What the processes of one policy take."""

    config: Config
    trainer: dict[str, list[Item]]
    """The memory of one rank, at each moment of a step."""
    engine: EngineMemory
    published: int
    """Bytes of one version."""
    offloaded: int
    """Bytes that its trainer keeps in host memory."""
    state: int
    """Bytes of what a checkpoint of the training holds: master weights and moments, of a critic, too."""

    @property
    def _checks_versions(self) -> bool:
        """Whether log-probabilities are compared with those of the version that sampled, where that is another."""
        train = self.config.train
        whole_layers = train.tensor_parallel == 1
        return train.max_logp_error > 0 and self.config.buffer.max_staleness > 0 and whole_layers

    @property
    def kept_shares(self) -> int:
        """Bytes that ranks keep in host memory to compare log-probabilities with the version before: two copies of
        their shares (`asyncrl.train.engine.kept_shares`)."""
        return 2 * self.published if self._checks_versions and self.config.train.zero_stage == 3 else 0

    @property
    def version_before(self) -> int:
        """Bytes of the version before that a rank with whole weights has on its GPU for that check, 0 without it."""
        return self.published if self._checks_versions and self.config.train.zero_stage < 3 else 0

    def moments(self, checked: bool) -> dict[str, list[Item]]:
        """Return what a rank holds at each moment. checked: with the version before."""
        before = [Item(VERSION_BEFORE, self.version_before)] if checked else []
        return {**self.trainer, PASSES: [*self.trainer[PASSES], *before]}

    def moment(self, checked: bool) -> str:
        """Return when a rank takes most."""
        moments = self.moments(checked)
        return max(moments, key=lambda name: _sum(moments[name]))

    @property
    def before_check(self) -> int:
        """Bytes that a rank holds when it asks whether the version before has room: no activations."""
        computed = ("activations", "logits")
        return sum(item.bytes for item in self.trainer[PASSES] if item.name not in computed)

    def rank(self, turn: bool, checked: bool = False) -> list[Item]:
        """Return what a rank takes when it takes most; with `turn` what it leaves on the GPU in the engines' turn."""
        if turn:
            between = self.trainer[PASSES]
            stays = [item for item in between if item.name.endswith(("weights", "gradients and buffers"))]
            stays = [item for item in stays if not item.name.endswith("master weights")]
            return stays if self.config.train.zero_stage == 3 else []
        items = self.moments(checked)[self.moment(checked)]
        found = [*items, Item("fragmentation", int(FRAGMENTATION * sum(item.bytes for item in items)))]
        return [*found, Item("NCCL buffers", COLLECTIVES)] if self.config.train.ranks > 1 else found

    def one_engine(self, asleep: bool) -> list[Item]:
        """Return what an engine takes of each of its GPUs."""
        engine, graphs = self.engine, [Item("engine: CUDA graphs", GRAPHS)]
        if asleep:
            return graphs
        return [
            Item("engine: weights", engine.weights),
            Item("engine: largest step", engine.activations),
            Item("engine: KV cache", max(0, engine.kv_cache)),
            *graphs,
        ]


class Planner:
    """Predicts runs on `gpus` GPUs of `gpu` bytes each. What a step takes is measured once for all that share it."""

    def __init__(self, gpu: int, gpus: int) -> None:
        self.gpu = gpu
        self.gpus = gpus
        self._steps: dict[str, StepMemory] = {}

    def predict(self, given: Config) -> Prediction:
        """Return what a run takes: where the engines' share is "auto", with the largest with which it fits, or that
        which they take otherwise. Raises `ConfigError`."""
        found = self._with_part(given, 1.0)
        if given.engine.gpu_memory_utilization == "auto" and not found.fits:
            smaller = (self._with_part(given, part) for part in PARTS[1:])
            return next((one for one in smaller if one.fits), found)
        return found

    def _with_part(self, given: Config, part: float) -> Prediction:
        placement = plan(given, [str(number) for number in range(self.gpus)])
        config = placed(given, placement, part)
        policies = {name: config.policy(name) for name in config.policy_names}
        shares = {name: self._policy(policy) for name, policy in policies.items()}
        main = shares[MAIN_POLICY]
        moments = {name: sum(item.bytes for item in items) for name, items in main.trainer.items()}
        host = {"published weights in /dev/shm, three versions at most": 3 * main.published}
        if offloaded := sum(share.offloaded for share in shares.values()):
            where = " in files of train.offload_folder" if given.train.offload_folder else ""
            host[f"offloaded by train.offload{where}, on all ranks"] = offloaded
        if kept_shares := sum(share.kept_shares for share in shares.values()):
            host["weights for the log-probability check, on all ranks"] = kept_shares
        if in_memory := sum(int(kept_states(share.config, share.state)) for share in shares.values()):
            host["checkpoints in memory, on each machine"] = in_memory
        devices = _devices(placement, shares, self.gpus, self.gpu)
        share = config.engine.gpu_memory_utilization
        assert isinstance(share, float)
        text = str(placement).replace(
            f"engines take {placement.gpu_memory_utilization:g}", f"engines take {share:g}"
        )
        return Prediction(given, self.gpu, self.gpus, text, devices, moments, main.engine, host, share)

    def _policy(self, config: Config) -> PolicyMemory:
        share = config.engine.gpu_memory_utilization
        assert isinstance(share, float)
        shapes = {"policy": architecture(config, "model.path", config.model.path)}
        for name, other in config.other_models.items():
            if other.is_loaded:
                shapes[name] = architecture(config, f"{name}.path", other.path)
        rank = self._rank(config, shapes)
        element = 2 if config.model.dtype == "bfloat16" else 4
        engine = engine_memory(
            shapes["policy"], rank.parameters * element, self.gpu, share, config.engine.tensor_parallel,
            config.engine.max_num_seqs, element, config.engine.pipeline_parallel,
        )  # fmt: skip
        published = (rank.trained if config.lora.rank else rank.parameters) * element
        return PolicyMemory(config, rank.moments, engine, published, rank.offloaded, rank.state)

    def advise(self, prediction: Prediction) -> Prediction:
        """Find changes with which what does not fit would: one kind alone, or with what costs nothing but time. Of each
        kind the first that does is named, and no other where time alone suffices."""
        if prediction.fits:
            return prediction
        free: list[str] = []
        found: list[list[str]] = []
        for kind, tried in _remedies(prediction).items():
            words = next(
                filter(None, (self._enough(prediction.given, free, changes) for changes in tried)), None
            )
            if words is not None:
                found.append(words)
            if len(found) == NAMED or (found and kind == TIME):
                break
            if kind == TIME:
                free = [word for changes in tried for word in changes]
        if not found and (words := self._all_of(prediction)):
            found = [words]
        prediction.advice, prediction.others = (found[0], found[1:]) if found else ([], [])
        return prediction

    def _enough(self, given: Config, free: Sequence[str], changes: Sequence[str]) -> list[str] | None:
        """Return the fewest of the changes that make a run fit: without those that are free, or with them."""
        for words in (list(changes), _together([*free, *changes])):
            found = self._changed(given, words)
            if found is not None and found.fits:
                return words
        return None

    def _all_of(self, prediction: Prediction) -> list[str]:
        """Return all changes up to that with which the run fits at last, one of each key; none where none does."""
        collected: list[str] = []
        for tried in _remedies(prediction).values():
            for changes in tried:
                collected = _together([*collected, *changes])
                found = self._changed(prediction.given, collected)
                if found is not None and found.fits:
                    return collected
        return []

    def _changed(self, config: Config, changes: Sequence[str]) -> Prediction | None:
        """Return the prediction with changes of keys; None where they are not allowed."""
        data = config.model_dump(mode="json")
        try:
            for change in changes:
                apply_override(data, change)
            return self.predict(parse_config(data, "advice", strict=False))
        except ConfigError:
            return None

    def _rank(self, config: Config, shapes: dict[str, dict[str, Any]]) -> RankMemory:
        """Return what a trainer rank takes. Loads torch only where that was not found out before."""
        train = config.train
        read = [
            shapes, config.algo, config.model.dtype, config.max_tokens, config.buffer.max_staleness, config.lora.rank,
            config.lora.target_modules, config.reference.refresh_every,
            {name: one.path for name, one in config.other_models.items()},
            train.zero_stage == 3, train.model_dump(mode="json", exclude=NOT_OF_THE_STEP),
        ]  # fmt: skip

        def measure() -> dict[str, Any]:
            memory = self._step(read, config, shapes)
            moments = trainer_memory(config, memory)
            offloaded = offloaded_memory(config, memory)
            state = sum(FLOAT32 * weights.trained + weights.moments for weights in memory.trained.values())
            policy = memory.policy
            return asdict(RankMemory(moments, policy.parameters, policy.trained, offloaded, state))

        return RankMemory.of(remembered([read, train.model_dump(mode="json")], measure))

    def _step(self, read: list[Any], config: Config, shapes: dict[str, dict[str, Any]]) -> StepMemory:
        """Return what a step takes. read: all that it depends on."""

        def measure() -> dict[str, Any]:
            from asyncrl.extensions.planning.training import measure_step

            return asdict(measure_step(config, shapes))

        key = json.dumps(read, sort_keys=True)
        if key not in self._steps:
            self._steps[key] = StepMemory.of(remembered(["step", *read], measure))
        return self._steps[key]


def trainer_memory(config: Config, memory: StepMemory) -> dict[str, list[Item]]:
    """Return what a trainer rank takes at each moment of a step, without estimates."""
    trained = memory.trained
    states: dict[str, Kept] = {}
    for name, weights in trained.items():
        states[name] = _kept(config, weights)
    base: list[Item] = []
    for name, state in states.items():
        base += [
            Item(f"{name}weights", state.weights),
            Item(f"{name}float32 master weights", state.master),
            Item(f"{name}optimizer states", state.moments),
        ]
    base += [Item(f"{name} model", size) for name, size in memory.copies.items()]
    base += [Item(f"{name} model", _of_rank(config, size)) for name, size in memory.divided.items()]
    between = [Item(f"{name}gradients and buffers", state.between) for name, state in states.items()]
    gathered = [Item(f"{name}weights, gathered", state.gathered) for name, state in states.items()]
    gradients = [Item(f"{name}gradients", state.gradients) for name, state in states.items()]
    buckets = [Item(f"{name}reduction buffers", state.buckets) for name, state in states.items()]
    staying = [one for one, state in zip(buckets, states.values(), strict=True) if state.buckets_stay]
    training = max(
        [*gradients, *staying, *_activations(memory.before_gradients)],
        [*gradients, *buckets, *_activations(memory.with_gradients)],
        key=_sum,
    )
    passing = {name: Item(f"{name} model", size) for name, size in memory.offloaded.items()}
    for name, size in memory.divided.items() if config.train.ranks > 1 else ():
        one = gathered_weights(size.bytes, size.persistent, config.model.dtype)
        passing[name] = Item(f"{name} model, gathered", one)
    beside = [passing[name] for name in (memory.read_in_training,) if name in passing]
    # Models compute one after another.
    reading = max([[], list(passing.values()), gathered if memory.passes.bytes else []], key=_sum)
    return {
        "loading": [Item("weights while loading", _loading(states.values()))],
        PASSES: [*base, *between, *reading, *_activations(memory.passes)],
        "forward and backward": [*base, *gathered, *beside, *training],
        "optimizer step": [
            *base,
            Item("gradients", sum(state.step_gradients for state in states.values())),
            Item("optimizer's temporaries", max(state.step for state in states.values())),
        ],
    }  # fmt: skip


def _loading(states: Iterable[Kept]) -> int:
    """Return what is there at most while models are loaded one after another: moments come with the first step."""
    there = most = 0
    for state in states:
        most = max(most, there + state.loading)
        there += state.weights + state.master + state.between
    return most


def _of_rank(config: Config, size: Size) -> int:
    """Return the bytes of a divided model that stay on a rank."""
    ranks = config.train.ranks
    return -(-size.bytes // ranks) + (size.persistent if ranks > 1 else 0)


def offloaded_memory(config: Config, memory: StepMemory) -> int:
    """Return what all trainer ranks keep in host memory."""
    return config.train.ranks * sum(_kept(config, weights).host for weights in memory.trained.values())


def _kept(config: Config, size: Size) -> Kept:
    from asyncrl.train.engine.deepspeed_engine import deepspeed_config

    settings = deepspeed_config(config.train, config.model.dtype, size.trained)
    return kept(size, settings, config.train.ranks, fused=config.train.optimizer == "adamw")


def _activations(found: Activations) -> list[Item]:
    return [Item("activations", found.bytes - found.logits), Item("logits", found.logits)]


def _sum(items: Sequence[Item]) -> int:
    return sum(item.bytes for item in items)


def _together(words: Sequence[str]) -> list[str]:
    """Return changes with one value for each key, the last."""
    return [*{word.partition("=")[0]: word for word in words}.values()]


def _remedies(prediction: Prediction) -> dict[str, list[list[str]]]:
    """Return the changes to try by kind, in the order in which they are named."""
    config, train = prediction.given, prediction.given.train
    engine_is_short = any(device.problems for device in prediction.devices)
    free = []
    if not train.gradient_checkpointing:
        free.append(["train.gradient_checkpointing=true"])
    if train.micro_batch_tokens > config.max_tokens:
        free.append([f"train.micro_batch_tokens={config.max_tokens}"])
    shares = [
        [f"{UTILIZATION}={share}"]
        for share in (0.6, 0.45, 0.35, 0.25)
        if share < _as_number(config.engine.gpu_memory_utilization)
    ]
    if engine_is_short:
        shares += [[f"{UTILIZATION}=0.6"], [f"{UTILIZATION}=0.9"]]
    adapter = [] if config.lora.rank else [["lora.rank=32"]]
    by_turns = ["placement.sleep=true", "train.schedule=synchronous", "buffer.max_staleness=0"]
    if config.engine.weight_transfer != "shared_file":
        by_turns.append("engine.weight_transfer=shared_file")
    turns = [] if config.placement.sleep is True else [by_turns]
    offload = [
        [f"train.offload={kind}", "train.zero_stage=3"]
        for kind in ("optimizer", "parameters")
        if train.offload != kind and train.optimizer != "adamw_8bit"
    ]
    more = _more_ranks(prediction) + (_more_parallel(prediction) if engine_is_short else [])
    more += [_together([*words, *by_turns]) for words in more]
    # First what a user of few GPUs does, then what takes more of them or is slow, last what changes the task.
    return {
        TIME: free,
        "adapter": adapter,
        "turns": turns,
        "share": shares,
        "ranks": more,
        "offload": offload,
        "context": _shorter(config),
    }


def _shorter(config: Config) -> list[list[str]]:
    """Return contexts of a half, a quarter and so on, with turns that leave room for a prompt."""
    found = []
    length = config.engine.max_model_len // 2
    while length >= SHORTEST:
        words = [f"engine.max_model_len={length}"]
        if config.rollout.max_tokens_per_turn > length // 2:
            words.append(f"rollout.max_tokens_per_turn={length // 2}")
        if config.train.micro_batch_tokens > length:
            words.append(f"train.micro_batch_tokens={length}")
        found.append(words)
        length //= 2
    return found


def _more_ranks(prediction: Prediction) -> list[list[str]]:
    config, train, there = prediction.given, prediction.given.train, prediction.gpus
    found = []
    for ranks in (2, 4, 8, 16, 32):
        if not train.ranks < ranks <= there:
            continue
        engines = config.engine.count * config.engine.ranks
        shared = [
            f"placement.trainer={json.dumps(list(range(ranks)))}",
            f"placement.engines={json.dumps(list(range(engines)))}",
        ]
        for stage in sorted({max(2, train.zero_stage), 3}):
            apart = ranks + engines <= there
            found.append([f"train.ranks={ranks}", f"train.zero_stage={stage}", *([] if apart else shared)])
    return found


def _more_parallel(prediction: Prediction) -> list[list[str]]:
    engine = prediction.given.engine
    return [
        [f"engine.tensor_parallel={parallel}"]
        for parallel in (2, 4, 8)
        if engine.tensor_parallel < parallel <= prediction.gpus
    ]


def _devices(placement: Placement, policies: dict[str, PolicyMemory], gpus: int, gpu: int) -> list[Device]:
    found: dict[tuple[str, ...], Device] = {}
    for number in range(gpus):
        trainers = [name for name, numbers in placement.trainers.items() if number in numbers]
        engines = [name for name, each in placement.engines.items() for one in each if number in one]
        engines += [MAIN_POLICY] if number in placement.evaluation else []
        roles = [f"trainer{_of(name)}" for name in trainers] + [f"engine{_of(name)}" for name in engines]
        if not roles:
            continue
        device = found.setdefault(tuple(roles), Device([], roles))
        device.gpus.append(number)
        if not device.items:
            ranks, served = ([policies[name] for name in names] for names in (trainers, engines))
            _fill(device, placement, ranks, served, gpu)
    return list(found.values())


def _fill(
    device: Device,
    placement: Placement,
    trainers: list[PolicyMemory],
    engines: list[PolicyMemory],
    gpu: int,
) -> None:
    """Note what a GPU of `gpu` bytes holds when it holds most."""
    contexts = Item("CUDA contexts", (len(trainers) + len(engines)) * CONTEXT)
    every = range(len(trainers))
    # Which trainers work, and whether the engines sleep meanwhile.
    by_turns = bool(placement.sleep and trainers and engines)
    turns: list[tuple[Sequence[int], bool]] = [(every, True), ((), False)] if by_turns else [(every, False)]
    states: list[tuple[str, list[Item]]] = []
    beside = _sum([item for one in engines for item in one.one_engine(asleep=by_turns)]) + contexts.bytes
    checked = [_has_room(device, trainers, number, gpu - beside) for number in every]
    for working, asleep in turns:
        ranks = [
            item for number in every for item in trainers[number].rank(number not in working, checked[number])
        ]
        served = [item for one in engines for item in one.one_engine(asleep=asleep)]
        when = "the engines' turn" if trainers else ""
        if working:
            when = trainers[working[0]].moment(checked[working[0]])
        states.append((when, _added([*ranks, *served, contexts])))
    device.moment, device.items = max(states, key=lambda state: sum(item.bytes for item in state[1]))
    for one in engines:
        longest, engine = one.config.engine.max_model_len, one.engine
        if not engine.holds(longest):
            device.problems.append(
                f"the engine's KV cache holds {engine.kv_tokens:,} tokens, and a sequence may have "
                f"engine.max_model_len = {longest:,}"
            )


def _has_room(device: Device, trainers: Sequence[PolicyMemory], number: int, free: int) -> bool:
    """Return whether a trainer compares log-probabilities with a version before that is on the GPU; note it where it is
    left out. free: bytes that engines leave."""
    one = trainers[number]
    others = sum(_sum(other.rank(False)) for other in trainers if other is not one)
    left = free - others - one.before_check
    # As `asyncrl.train.engine.earlier_policy` asks: its pass needs memory, too.
    if one.version_before and left <= 2 * one.version_before:
        device.notes.append(
            "log-probabilities of tokens that an earlier version sampled will not be checked: its weights need twice "
            f"{one.version_before / GIB:.1f} GiB, and {max(0, left) / GIB:.1f} GiB are free; train.zero_stage=3 needs "
            "none"
        )
        return False
    return one.version_before > 0


def _added(items: list[Item]) -> list[Item]:
    """Return the items with those of one name added, and without empty ones."""
    sizes: dict[str, int] = {}
    for item in items:
        sizes[item.name] = sizes.get(item.name, 0) + item.bytes
    return [Item(name, size) for name, size in sizes.items() if size]


def _as_number(share: float | str) -> float:
    return share if isinstance(share, float) else 1.0


def _of(policy: str) -> str:
    return "" if policy == MAIN_POLICY else f" of {policy}"


def _range(numbers: Sequence[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
