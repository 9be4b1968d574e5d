"""Every check across the sections of a configuration, made before anything starts. Imports no torch.

Sections check their own keys. `section_problems` and `policy_problems` run whenever a configuration is read,
`check_objective` and `check_curriculum` once its import paths can be resolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from asyncrl.algo import signature
from asyncrl.algo.curation.curricula import FILE_ORDER, Factory, factory
from asyncrl.algo.needs import KNOWN
from asyncrl.algo.settings import always_signal, needed, part_needs, resolve_settings
from asyncrl.config_sections import (
    DRAFT_MODELS,
    SCHEDULES,
    SELF_TEACHER,
    BufferConfig,
    CurriculumConfig,
    DataConfig,
    EngineConfig,
    EnvConfig,
    EvalConfig,
    JudgeConfig,
    LoraConfig,
    ModelConfig,
    OpponentsConfig,
    OuterConfig,
    PlacementConfig,
    PolicyConfig,
    ReferenceConfig,
    RolloutConfig,
    RunConfig,
    ScaleConfig,
    SftConfig,
    SwarmConfig,
    TeacherConfig,
    TrainConfig,
    is_url,
)
from asyncrl.errors import ConfigError

POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""It is part of folders, files of the run and addresses of engines."""


class Recipe(Protocol):
    """The parts of a `Config` that the checks read."""

    @property
    def run(self) -> RunConfig: ...
    @property
    def model(self) -> ModelConfig: ...
    @property
    def env(self) -> EnvConfig: ...
    @property
    def engine(self) -> EngineConfig: ...
    @property
    def placement(self) -> PlacementConfig: ...
    @property
    def rollout(self) -> RolloutConfig: ...
    @property
    def buffer(self) -> BufferConfig: ...
    @property
    def no_signal(self) -> frozenset[str]: ...
    @property
    def scale(self) -> ScaleConfig: ...
    @property
    def data(self) -> DataConfig: ...
    @property
    def curriculum(self) -> CurriculumConfig: ...
    @property
    def opponents(self) -> OpponentsConfig: ...
    @property
    def algo(self) -> dict[str, Any]: ...
    @property
    def train(self) -> TrainConfig: ...
    @property
    def outer(self) -> OuterConfig: ...
    @property
    def swarm(self) -> SwarmConfig: ...
    @property
    def lora(self) -> LoraConfig: ...
    @property
    def judge(self) -> JudgeConfig: ...
    @property
    def reference(self) -> ReferenceConfig: ...
    @property
    def teacher(self) -> TeacherConfig: ...
    @property
    def eval(self) -> EvalConfig: ...
    @property
    def sft(self) -> SftConfig: ...
    @property
    def policies(self) -> Mapping[str, PolicyConfig]: ...
    @property
    def slots(self) -> int: ...


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield the conflicts between keys of different sections."""
    if recipe.model.path == "sft" and recipe.sft.data:
        yield (
            "sft.data: must be left out for model.path='sft', which makes a tiny base model of scripted episodes; name "
            f"the model that is to learn from rows, got {recipe.sft.data!r}"
        )
    implied = SCHEDULES[recipe.train.schedule]
    if implied is not None and recipe.buffer.max_staleness != implied:
        yield (
            f"buffer.max_staleness must be {implied} under train.schedule={recipe.train.schedule!r} (it may be "
            f"left out), got {recipe.buffer.max_staleness}"
        )
    for name, given in (
        ("token_budget", recipe.buffer.token_budget > 0),
        ("recycle", not recipe.buffer.recycle),
    ):
        if given and recipe.train.schedule not in ("asynchronous", "partial"):
            yield (
                f"buffer.{name} must be left out under train.schedule={recipe.train.schedule!r}, which trains "
                "whole batches of one version"
            )
    most = recipe.buffer.max_staleness * recipe.buffer.groups_per_step
    if recipe.buffer.token_budget and recipe.slots == most + recipe.buffer.groups_per_step:
        yield (
            f"buffer.over_provision must be below max_staleness * groups_per_step = {most} for a token_budget: "
            "with that many groups in flight the staleness limit leaves no step without all of its groups, got "
            f"{recipe.buffer.over_provision}"
        )
    if recipe.buffer.machine == "node" and recipe.buffer.replica:
        yield (
            "buffer.replica must be left out for buffer.machine='node', whose replica the head has, got "
            f"{recipe.buffer.replica!r}"
        )
    if recipe.train.ranks % recipe.train.nodes:
        yield f"train.ranks must be a multiple of train.nodes={recipe.train.nodes}, got {recipe.train.ranks}"
    if recipe.train.min_nodes > recipe.train.nodes:
        yield f"train.min_nodes must be at most train.nodes={recipe.train.nodes}, got {recipe.train.min_nodes}"
    yield from _engine_nodes_problems(recipe)
    yield from _pipeline_problems(recipe)
    if recipe.train.offload != "none" and recipe.train.zero_stage != 3:
        yield (
            "train.zero_stage must be 3 where train.offload is not 'none': below it DeepSpeed keeps the gradients it "
            f"offloads in the weights' own type, got {recipe.train.zero_stage}"
        )
    if recipe.train.offload != "none" and recipe.train.optimizer == "adamw_8bit":
        yield (
            "train.optimizer must be 'adamw' or 'muon' where train.offload is not 'none': states of 8 bits are for the "
            "GPU, got 'adamw_8bit'"
        )
    if recipe.train.offload_folder and recipe.train.offload == "none":
        yield (
            "train.offload must be 'optimizer' or 'parameters' where train.offload_folder says in whose files, got "
            "'none'"
        )
    if recipe.judge.url and recipe.env.name == "agent":
        yield (
            "judge.url must be left out for env.name='agent', whose agent reports its own reward, got "
            f"{recipe.judge.url!r}"
        )
    if recipe.lora.rank and recipe.engine.weight_transfer == "collective":
        yield (
            "engine.weight_transfer must be 'shared_file', 'http' or 'nixl' where lora.rank is above 0: vLLM reads "
            "adapters from files, got 'collective'"
        )
    yield from _sleep_problems(recipe)
    if recipe.engine.keep_kv and (recipe.lora.rank or recipe.train.schedule == "asynchronous"):
        yield (
            "engine.keep_kv must be false where lora.rank is above 0 or train.schedule is 'asynchronous': no request "
            "goes on under other weights there, got true"
        )
    if recipe.engine.keep_kv and recipe.engine.kv_offload_gib:
        yield (
            "engine.kv_offload_gib must be 0 where engine.keep_kv is true: what old weights computed would be found in "
            f"host memory under new ones, got {recipe.engine.kv_offload_gib:g}"
        )
    if recipe.engine.speculative.method != "off":
        yield from _speculation_problems(recipe)
    if recipe.engine.quantization != "off" and recipe.lora.rank:
        yield (
            "engine.quantization must be 'off' where lora.rank is above 0: adapters are trained on whole weights, got "
            f"{recipe.engine.quantization!r}"
        )
    if recipe.train.router_replay:
        yield from _replay_problems(recipe)
    if recipe.train.tensor_parallel > 1:
        yield from _tensor_parallel_problems(recipe)
    if recipe.train.old_policy == "interrupt":
        yield from _interruption_problems(recipe)
    if recipe.train.commitments:
        yield from _commitment_problems(recipe)
    if recipe.train.replay_groups and recipe.train.schedule == "periodic":
        yield (
            "train.replay_groups must be 0 under train.schedule='periodic', which trains on groups as they arrive, got "
            f"{recipe.train.replay_groups}"
        )
    if recipe.outer.url and recipe.policies:
        yield f"outer.url must be left out where there are further policies, got {recipe.outer.url!r}"
    yield from _swarm_problems(recipe)
    yield from _scale_problems(recipe)
    yield from _completion_problems(recipe)
    yield from _opponent_problems(recipe)
    yield from _turn_slack_problems(recipe)
    yield from _seeding_problems(recipe)
    if recipe.eval.every and not recipe.eval.tasks:
        yield (f"eval.tasks must be above 0 for eval.every={recipe.eval.every}")
    if recipe.env.task_file and recipe.data.train:
        yield f"env.task_file must be left out where data.train has the tasks, got {recipe.env.task_file!r}"
    if recipe.env.num_tasks and recipe.env.num_tasks < recipe.buffer.groups_per_step:
        yield (
            f"env.num_tasks must be 0 or at least buffer.groups_per_step={recipe.buffer.groups_per_step}, "
            f"got {recipe.env.num_tasks}"
        )


def _ruled_out(when: str, *settings: tuple[str, bool, str, str]) -> Iterator[str]:
    """Yield what is wrong of settings that something rules out: a key, whether its value is wrong, what is allowed and
    why. when: what rules it out."""
    for key, wrong, allowed, why in settings:
        if wrong:
            yield f"{key} must be {allowed} {when}: {why}"


def _pipeline_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what an engine does not do whose layers are split into stages."""
    stages = recipe.engine.pipeline_parallel
    if stages == 1:
        return
    yield from _ruled_out(
        f"with engine.pipeline_parallel={stages}",
        (
            "train.router_replay",
            recipe.train.router_replay,
            "false",
            "each stage knows the experts of its own layers alone",
        ),
        (
            "train.commitments",
            recipe.train.commitments,
            "false",
            "the first stage has no final hidden states",
        ),
    )


def _engine_nodes_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps one engine from being spread over machines."""
    engine, nodes = recipe.engine, recipe.engine.nodes
    if nodes == 1:
        return
    if engine.ranks % nodes:
        yield (
            f"engine.nodes must divide the {engine.ranks} rank{'s' * (engine.ranks > 1)} of {engine.said_ranks}, got "
            f"{nodes}"
        )
    yield from _ruled_out(
        f"with engine.nodes={nodes}",
        (
            "lora.rank",
            recipe.lora.rank > 0,
            "0",
            "vLLM reads adapters from files, on the machine of its server",
        ),
        (
            "engine.weight_delta",
            engine.weight_delta,
            "false",
            "the machines of an engine get whole files from each other",
        ),
        (
            "engine.kv_offload_gib",
            engine.kv_offload_gib > 0,
            "0",
            "the ranks share blocks in the memory of one machine",
        ),
        (
            "train.router_replay",
            recipe.train.router_replay,
            "false",
            "experts are recorded in the memory of one machine",
        ),
    )


def _scale_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps processes from being added and retired."""
    start = {
        "rollout": ("rollout.workers", recipe.rollout.workers),
        "env": ("env.services", recipe.env.services),
        "engine": ("engine.count", recipe.engine.count),
    }
    for role, (least, most) in recipe.scale.limits.items():
        key, count = start[role]
        if count != "auto" and not least <= count <= most:
            yield f"{key} must be within scale.{role}=[{least}, {most}], got {count}"
    if recipe.scale.limits and recipe.policies:
        role = next(iter(recipe.scale.limits))
        yield f"scale.{role} must be left out where there are further policies, got {list(recipe.scale.limits[role])}"
    if "engine" in recipe.scale.limits and recipe.placement.sleep is True:
        yield (
            "scale.engine must be left out for placement.sleep=true, where engines and trainer use the memory by "
            f"turns, got {list(recipe.scale.limits['engine'])}"
        )


def _seeding_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a curriculum from showing solved tasks in the prompts of others."""
    chosen = recipe.curriculum
    if chosen.name == "xrpo" and chosen.settings.get("seeds") and recipe.env.name == "agent":
        yield "curriculum.settings.seeds must be 0 with env.name='agent', which writes its own prompts"


def _turn_slack_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps episodes from being limited by earlier successes at their task."""
    slack = recipe.curriculum.turn_slack
    if not slack:
        return
    if slack < 1:
        yield f"curriculum.turn_slack must be 0 or at least 1, got {slack:g}"
    if recipe.curriculum.name == FILE_ORDER:
        yield f"curriculum.turn_slack must be 0 with curriculum.name={FILE_ORDER!r}, which plays each task once"
    if recipe.env.name == "agent":
        yield "curriculum.turn_slack must be 0 with env.name='agent', which plays its own turns"


def _completion_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps groups from being completed by earlier successes."""
    if not recipe.train.complete_groups:
        return
    for wrong, why in (
        (
            recipe.train.schedule == "periodic",
            "train.schedule='periodic', which trains on groups as they arrive",
        ),
        (recipe.curriculum.name == FILE_ORDER, f"curriculum.name={FILE_ORDER!r}, which plays each task once"),
    ):
        if wrong:
            yield f"train.complete_groups must be false with {why}"


def _opponent_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps past versions from playing one side of the episodes."""
    chosen = recipe.opponents.choose
    if chosen == "off":
        return
    if not recipe.lora.rank:
        yield (
            f"lora.rank must be above 0 for opponents.choose={chosen!r}: engines hold past versions as adapters beside "
            "the newest one; 'off' is self-play, which trains all weights, too"
        )
    for key, wrong, why in (
        (
            "engine.weight_transfer",
            recipe.engine.weight_transfer != "shared_file",
            "engines read past versions from the folder of weights",
        ),
        (
            "policies",
            any(not policy.exploits for policy in recipe.policies.values()),
            "each of them would need a population of its own, unless it is an exploiter",
        ),
        (
            "outer.url",
            bool(recipe.outer.url),
            "the runs would deal each other's policies different opponents",
        ),
        ("env.name='agent'", recipe.env.name == "agent", "an agent behind the gateway plays alone"),
        ("rollout.branches", recipe.rollout.branches > 0, "branches follow the main agent's conversation"),
        ("rollout.hinted", recipe.rollout.hinted > 0, "hints are for the main agent"),
        ("judge.url", bool(recipe.judge.url), "a judge gives all agents of an episode its score"),
    ):
        if wrong:
            yield f"{key} must be left out with opponents.choose={chosen!r}: {why}"


def _swarm_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps a run from training other runs' groups beside its own."""
    if not recipe.swarm.url:
        return
    for key, wrong, why in (
        (
            "train.schedule='periodic'",
            recipe.train.schedule == "periodic",
            "it trains on groups as they arrive",
        ),
        ("train.router_replay", recipe.train.router_replay, "experts are those of another model"),
        ("policies", bool(recipe.policies), "groups are of one policy"),
        ("opponents.choose", recipe.opponents.choose != "off", "others do not have its past versions"),
        ("env.name='agent'", recipe.env.name == "agent", "its tasks mean nothing to others"),
        ("rollout.branches", recipe.rollout.branches > 0, "groups are of whole episodes"),
    ):
        if wrong:
            yield f"{key} must be left out with swarm.url: {why}"


def _sleep_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from sleeping while the trainer works."""
    if recipe.placement.sleep is not True:
        return
    if recipe.train.schedule != "synchronous":
        yield (
            "placement.sleep must be false or 'auto' under train.schedule="
            f"{recipe.train.schedule!r}, where engines sample while the trainer works; 'synchronous' allows it"
        )
    if recipe.engine.weight_transfer != "shared_file":
        yield (
            "placement.sleep: engine.weight_transfer must be 'shared_file', which needs no memory of both sides at "
            f"once, got {recipe.engine.weight_transfer!r}"
        )
    if recipe.policies:
        yield "placement.sleep must be false or 'auto' where there are policies: their trainers work at any time"


def _speculation_problems(recipe: Recipe) -> Iterator[str]:
    method = recipe.engine.speculative.method
    why = (
        f"for engine.speculative.method={method!r}: beside speculation vLLM reports exact log-probabilities only for "
        "the distribution before temperature and truncation"
    )
    if recipe.rollout.temperature != 1.0:
        yield f"rollout.temperature must be 1 {why}, got {recipe.rollout.temperature:g}"
    if recipe.eval.temperature not in (0.0, 1.0):
        yield f"eval.temperature must be 0 or 1 {why}, got {recipe.eval.temperature:g}"


def _replay_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from recording experts that the trainer can use."""
    yield from _ruled_out(
        "for train.router_replay=true",
        (
            "engine.keep_kv",
            recipe.engine.keep_kv,
            "false",
            "kept blocks would be taken for those of new weights",
        ),
        (
            "engine.kv_offload_gib",
            recipe.engine.kv_offload_gib > 0,
            "0",
            "vLLM keeps the experts of a block by its place on the GPU",
        ),
        (
            "engine.speculative.method",
            recipe.engine.speculative.method != "off",
            "'off'",
            "a drafter's tokens that are rejected have been routed, too",
        ),
        ("env.name", recipe.env.name == "agent", "an environment", "the gateway does not keep experts"),
        (
            "train.old_policy",
            recipe.train.old_policy != "trainer",
            "'trainer'",
            "elsewhere tokens are scored without their experts",
        ),
    )


def _tensor_parallel_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what does not go together with ranks that have a part of each layer."""
    train = recipe.train
    yield from _ruled_out(
        f"with train.tensor_parallel={train.tensor_parallel}",
        (
            "train.ranks",
            train.ranks % train.tensor_parallel > 0,
            "a multiple of it",
            f"so many ranks have a part of each layer, got {train.ranks}",
        ),
        (
            "train.zero_stage",
            train.zero_stage not in (1, 2),
            "1 or 2",
            "the norm of gradients is taken over all parts there, and ZeRO-3 divides the layers by itself",
        ),
        ("train.sequence_parallel", train.sequence_parallel > 1, "1", "both divide the heads over ranks"),
        ("train.optimizer", train.optimizer == "muon", "another one", "Muon needs whole matrices"),
        ("train.router_replay", train.router_replay, "false", "models with experts are not divided"),
        ("lora.rank", recipe.lora.rank > 0, "0", "adapters are not divided"),
        (
            "engine.quantization",
            recipe.engine.quantization != "off",
            "'off'",
            "each rank would round its own part",
        ),
        (
            "outer.url",
            bool(recipe.outer.url),
            "left out",
            "trainers exchange whole weights of their optimizers",
        ),
    )


def _interruption_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from being asked, before each update, for all that was sampled."""
    schedule = recipe.train.schedule
    yield from _ruled_out(
        "for train.old_policy='interrupt'",
        (
            "train.schedule",
            schedule not in ("asynchronous", "partial"),
            "'asynchronous' or 'partial'",
            f"under {schedule!r} no episode spans two versions",
        ),
        (
            "buffer.max_staleness",
            recipe.buffer.max_staleness == 0,
            "above 0",
            "without it no token is of an earlier version",
        ),
        ("lora.rank", recipe.lora.rank > 0, "0", "requests go on under the adapter they began with"),
        (
            "scale.engine",
            "engine" in recipe.scale.limits,
            "left out",
            "an engine that leaves takes along what it has sampled",
        ),
    )


def _commitment_problems(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps engines from committing to hidden states that the trainer can compute again."""
    speculative, quantization = recipe.engine.speculative.method, recipe.engine.quantization
    yield from _ruled_out(
        "for train.commitments=true",
        (
            "engine.keep_kv",
            recipe.engine.keep_kv,
            "false",
            "states over an older cache are of no one version",
        ),
        ("engine.speculative.method", speculative != "off", "'off'", "several tokens come of one pass"),
        ("engine.quantization", quantization != "off", "'off'", "how far rounding moves states is not known"),
        ("env.name", recipe.env.name == "agent", "an environment", "the gateway does not keep commitments"),
        ("train.max_logp_error", not recipe.train.max_logp_error, "above 0", "both are checked in one pass"),
        ("rollout.branches", recipe.rollout.branches > 0, "0", "a branch may begin inside a commitment"),
        ("policies", bool(recipe.policies), "left out", "only a run's own policy is checked"),
    )


def policy_problems(recipe: Recipe) -> Iterator[str]:
    """Yield the conflicts of further policies with each other and with the rest of the recipe."""
    if not recipe.policies:
        return
    for key, wrong, why in (
        ("env.name", recipe.env.name == "agent", "an agent behind the gateway is played by one policy"),
        ("rollout.branches", recipe.rollout.branches > 0, "branches follow one policy"),
        ("rollout.hinted", recipe.rollout.hinted > 0, "hints are for one policy"),
        (
            "curriculum.name",
            recipe.curriculum.name != FILE_ORDER,
            "a curriculum may choose the number of episodes, and slots of other policies have rollout.group_size",
        ),
        ("eval.every", recipe.eval.every > 0, "an evaluation during training loads one policy"),
    ):
        if wrong:
            yield (f"{key} must be left out where there are policies: {why}")
    players: dict[str, str] = {}
    for name, policy in recipe.policies.items():
        if not POLICY_NAME.fullmatch(name):
            yield (
                f"policies.{name}: a policy's name must consist of letters, digits, '-' and '_' and begin with a "
                f"letter or digit, got {name!r}"
            )
        if policy.agents and policy.exploits:
            yield f"policies.{name}: either agents or exploits must be given, not both"
        elif not policy.agents and not policy.exploits:
            yield (
                f"policies.{name}.agents: list should have at least 1 item; only an exploiter has none, whose "
                f"policies.{name}.exploits is above 0"
            )
        if policy.minimax and not policy.exploits:
            yield f"policies.{name}.minimax: must be false where policies.{name}.exploits is 0, got true"
        for agent in policy.agents:
            if agent in players:
                yield (f"policies.{name}.agents: {agent!r} is already played by policies.{players[agent]}")
            players[agent] = name


class ManyPolicies(Recipe, Protocol):
    """A recipe of which the configurations of further policies can be asked for."""

    def policy(self, name: str) -> Recipe: ...
    def shares_engines(self, name: str) -> bool: ...


def exploiter_problems(recipe: ManyPolicies) -> Iterator[str]:
    """Yield what keeps a policy from being trained against the recipe's own alone."""
    names = [name for name, policy in recipe.policies.items() if policy.exploits]
    for name in names[1:]:
        yield f"policies.{name}.exploits: must be 0 beside policies.{names[0]}, the run's exploiter"
    for name in names[:1]:
        key = f"policies.{name}.exploits"
        if recipe.opponents.choose == "off":
            yield f"opponents.choose must be 'uniform' or 'prioritised' with {key}: it joins the population"
        elif not recipe.shares_engines(name):
            yield f"{key}: the policy must train an adapter of the recipe's own model, on its engines"
        elif not recipe.policy(name).train.checkpoint_every:
            yield f"train.checkpoint_every must be above 0 with {key}: the exploiter goes back to its first checkpoint"
        elif recipe.policies[name].minimax:
            yield from _minimax_problems(recipe, name)


def _minimax_problems(recipe: ManyPolicies, name: str) -> Iterator[str]:
    """Yield what keeps the critic of the recipe's own policy from rewarding an exploiter."""
    policy, own = recipe.policy(name), f"policies.{name}"
    for key, wrong, value, allowed, why in (
        (
            "train.checkpoint_every",
            not recipe.train.checkpoint_every,
            0,
            "above 0",
            "the critic is read from the checkpoints of the recipe's own policy",
        ),
        (
            f"{own}.train.schedule",
            policy.train.schedule == "periodic",
            "periodic",
            "synchronous, one_step_off, asynchronous or partial",
            "the critic values whole batches",
        ),
        (
            f"{own}.buffer.drop_no_signal",
            policy.buffer.drop_no_signal is not False,
            "true",
            "false, or left out",
            "episodes that the game rewards alike differ for the critic",
        ),
    ):
        if wrong:
            yield f"{key}: must be {allowed} with {own}.minimax, since {why}; got {value}"


def check_minimax(recipe: ManyPolicies) -> None:
    """Refuse the critic's reward of an exploiter where there is no critic, or where the exploiter's objective would not
    read it. Raises `ConfigError`."""
    for name, policy in recipe.policies.items():
        if not policy.minimax:
            continue
        key = f"policies.{name}.minimax"
        if "values" not in needed(resolve_settings(recipe.algo)):
            raise ConfigError(
                f"{key}: must be false where the recipe's own policy has no critic, got true; an algo with one has "
                "algo.advantage.name='gae', for example, or algo.preset='ppo'"
            )
        settings = resolve_settings(recipe.policy(name).algo)
        if unread := sorted(needed(settings) & {"components", "matches", "teacher", "teacher_logits"}):
            raise ConfigError(
                f"{key}: must be false for an exploiter whose objective learns from {KNOWN[unread[0]]} instead of its "
                "rewards, got true"
            )
        loss = signature.read("loss", settings["loss"]["name"])
        if loss is not None and not loss.reads_rewards:
            raise ConfigError(
                f"{key}: must be false with policies.{name}.algo.loss.name={settings['loss']['name']!r}, which reads "
                "no rewards, got true"
            )
        if "baselines" in needed(settings):
            raise ConfigError(
                f"{key}: must be false for an exploiter whose objective needs {KNOWN['baselines']}: that is of rewards "
                "in [0, 1]; got true"
            )


def check_curriculum(recipe: Recipe) -> Factory | None:
    """Return what makes the run's curriculum of its tasks; None where tasks come in their own order.

    Raises `ConfigError` for an unknown curriculum and for wrong settings.
    """
    chosen = recipe.curriculum
    return factory(
        chosen.name, chosen.settings, recipe.rollout.group_size, recipe.run.seed, chosen.turn_slack
    )


def check_objective(recipe: Recipe) -> dict[str, Any]:
    """Return the resolved `algo` section of a `Config`.

    Raises `ConfigError` for mistakes in it, and for what it needs and the rest of the recipe does not provide.
    """
    settings = resolve_settings(recipe.algo)
    words = needed(settings)
    if words & {"teacher", "teacher_logits"} and not recipe.teacher.path:
        raise ConfigError(
            "teacher.path: this objective needs a teacher; give a model, a vLLM server's address, or 'self'"
        )
    if "teacher_logits" in words and is_url(recipe.teacher.path):
        raise ConfigError(
            "teacher.path: this objective reads the teacher's whole distribution, which no server returns; give a model"
        )
    if words & {"teacher", "teacher_logits"} and recipe.teacher.path == SELF_TEACHER:
        _check_self_teacher(recipe, words)
    for name in ("reference", "teacher"):
        if is_url(getattr(recipe, name).path) and recipe.rollout.temperature != 1.0:
            raise ConfigError(
                f"{name}.path: a served model scores at temperature 1; rollout.temperature must be 1, got "
                f"{recipe.rollout.temperature:g}"
            )
    if is_url(recipe.reference.path) and recipe.reference.refresh_every:
        raise ConfigError("reference.refresh_every: a served reference cannot be refreshed; allowed: 0")
    if "greedy" in words and recipe.opponents.choose != "off":
        raise ConfigError(
            "opponents.choose: must be 'off' for an objective with a greedy baseline, which would be the main agent's "
            f"whoever plays it; got {recipe.opponents.choose!r}"
        )
    if settings["staleness_control"]["enabled"]:
        _check_staleness_control(recipe, settings["staleness_control"])
    _check_drafter(recipe)
    if recipe.train.old_policy != "trainer" and "snapshots" not in words:
        raise ConfigError(
            f"train.old_policy: {recipe.train.old_policy!r} scores tokens for an objective that reads them, such as "
            "one with algo.proximal.name='snapshot'; allowed otherwise: trainer"
        )
    if recipe.swarm.url and (asked := sorted(words & {"agents", "answers", "branches", "greedy"})):
        raise ConfigError(
            f"swarm.url: must be left out for an objective that needs {KNOWN[asked[0]]}, which groups of other runs "
            f"do not bring; got {recipe.swarm.url!r}"
        )
    for key, given, off in (
        ("train.replay_groups", recipe.train.replay_groups, "0"),
        ("train.complete_groups", recipe.train.complete_groups, "false"),
        ("swarm.url", recipe.swarm.url, "left out"),
    ):
        if given and words & {"snapshots", "baselines", "role_baselines"}:
            raise ConfigError(
                f"{key}: must be {off} for an objective that tracks the rewards of prompts or roles, or that "
                "reads the log-probabilities of the version that sampled each token: they go back "
                f"buffer.max_staleness versions; got {given}"
            )
    _check_schedule(recipe, settings)
    _check_branches_and_hints(recipe, words, settings["advantage"]["name"])
    _check_no_signal(recipe, settings)
    _check_long_rows(recipe, words)
    if settings["value"]["steps"] > 1 and settings["value"]["trunk"] != "own":
        raise ConfigError(
            f"algo.value.steps: must be 1 for algo.value.trunk={settings['value']['trunk']!r}, which learns with the "
            f"policy, got {settings['value']['steps']}"
        )
    if "score_norms" in words and recipe.train.zero_stage == 3:
        raise ConfigError(
            f"train.zero_stage: algo.advantage={settings['advantage']} reads the norm of each trajectory's gradient, "
            "which needs train.zero_stage below 3, got 3"
        )
    return settings


def _check_self_teacher(recipe: Recipe, words: frozenset[str]) -> None:
    """Refuse a self-teacher that has nothing to be shown, or that cannot be run. Raises `ConfigError`."""
    if recipe.rollout.group_size == 1 and not recipe.train.complete_groups:
        raise ConfigError(
            "rollout.group_size: must be above 1 for teacher.path='self', which is shown a success of another episode "
            "of the group, got 1"
        )
    if "teacher_logits" in words and recipe.train.zero_stage == 3:
        raise ConfigError(
            "train.zero_stage: must be below 3 where teacher.path='self' is compared over the whole vocabulary: the "
            "policy reads another row inside its own forward pass; algo.loss.name='opd_sampled' allows 3"
        )


def _check_staleness_control(recipe: Recipe, rule: dict[str, Any]) -> None:
    if rule["minimum"] > recipe.buffer.max_staleness:
        raise ConfigError(
            f"algo.staleness_control.minimum: must be at most buffer.max_staleness={recipe.buffer.max_staleness}, "
            f"got {rule['minimum']}"
        )
    if rule["low_ess"] >= rule["high_ess"]:
        raise ConfigError(
            f"algo.staleness_control.low_ess: must be below high_ess={rule['high_ess']:g}, got {rule['low_ess']:g}"
        )


def _check_branches_and_hints(recipe: Recipe, words: frozenset[str], advantage: str) -> None:
    """Refuse branches and hints that a group cannot hold. Raises `ConfigError`."""
    rollout = recipe.rollout
    for name in ("branches", "hinted"):
        count = getattr(rollout, name)
        if count >= rollout.group_size and count:
            raise ConfigError(
                f"rollout.{name}: must be below rollout.group_size={rollout.group_size}, got {count}"
            )
        if count and recipe.env.name == "agent":
            raise ConfigError(f"rollout.{name}: must be 0 with env.name='agent', which plays its own turns")
    if "branches" in words and not rollout.branches:
        raise ConfigError(f"rollout.branches: must be above 0 for algo.advantage.name={advantage!r}, got 0")


def _check_no_signal(recipe: Recipe, settings: dict[str, Any]) -> None:
    """Refuse to drop groups that the objective learns from. Raises `ConfigError`."""
    if recipe.buffer.drop_no_signal and (part := always_signal(settings)):
        raise ConfigError(
            f"buffer.drop_no_signal: must be false, or left out, with {part}, which may learn from groups whose "
            "episodes all earned the same, got true"
        )


def _check_drafter(recipe: Recipe) -> None:
    """Refuse a drafter that training would leave behind. Raises `ConfigError`."""
    method = recipe.engine.speculative.method
    if method in DRAFT_MODELS:
        raise ConfigError(
            f"engine.speculative.method: {method!r} has a drafter with weights of its own, which training does not "
            "update: the further the policy moves, the fewer of its tokens are accepted; allowed in training: off, "
            "ngram, suffix"
        )


def _check_long_rows(recipe: Recipe, words: frozenset[str]) -> None:
    """Refuse what rows longer than a GPU has room for do not allow. Raises `ConfigError`."""
    train = recipe.train
    if train.ranks % train.sequence_parallel:
        raise ConfigError(
            f"train.sequence_parallel: must divide train.ranks={train.ranks}, got {train.sequence_parallel}"
        )
    for key in ("sequence_parallel", "tensor_parallel"):
        if getattr(train, key) > 1 and "score_norms" in words:
            raise ConfigError(
                f"train.{key}: must be 1 where algo.advantage reads the norm of each trajectory's gradient, of "
                f"which each rank would have a part; got {getattr(train, key)}"
            )
    if train.offload_activations and not train.gradient_checkpointing:
        raise ConfigError(
            "train.offload_activations: moves what train.gradient_checkpointing keeps, which must be true with it"
        )


def _check_schedule(recipe: Recipe, settings: dict[str, Any]) -> None:
    """Refuse what a schedule cannot do. Raises `ConfigError`."""
    schedule = recipe.train.schedule
    if settings["staleness_control"]["enabled"] and schedule not in ("asynchronous", "partial"):
        raise ConfigError(
            f"algo.staleness_control.enabled: must be false under train.schedule={schedule!r}, whose limit is fixed"
        )
    if schedule != "periodic":
        return
    whole = {
        f"train.num_minibatches={recipe.train.num_minibatches}": recipe.train.num_minibatches > 1,
        **_beyond_group("advantage", settings["advantage"]),
        **_beyond_group("normalize", settings["normalize"]),
        f"algo.loss.name={settings['loss']['name']!r}": _measures_batch("loss", settings["loss"]),
        "algo.denominator='kept'": settings["denominator"] == "kept",
        "algo.lr_scaling": bool(settings["lr_scaling"]["power"]),
        "algo.kl.where='reward'": settings["kl"]["where"] == "reward",
        "a critic": "values" in needed(settings),
        **{
            f"algo.corrections: {part['name']!r}": _measures_batch("correction", part)
            for part in settings["corrections"]
        },
    }
    for part in settings["filters"]:
        whole |= _beyond_group("filter", part)
    wrong = [name for name, reads in whole.items() if reads]
    if wrong:
        raise ConfigError(
            f"train.schedule: 'periodic' trains on groups as they arrive, which {wrong[0]} does not allow since it "
            "reads the whole batch; allowed: synchronous, one_step_off, asynchronous, partial"
        )


def _beyond_group(kind: str, part: dict[str, Any]) -> dict[str, bool]:
    """Return the key for which a part of the objective reads beyond a row's own group, with True; {} if it does not."""
    found = signature.read(kind, part["name"])
    key = found.beyond_group(part) if found is not None else "name"
    return {} if key is None else {f"algo.{kind}.{key}={part.get(key)!r}": True}


def _measures_batch(kind: str, part: dict[str, Any]) -> bool:
    return bool(part_needs(kind, part) & {"step_statistics", "ratio_statistics"})
