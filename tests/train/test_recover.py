"""A trainer that dies resumes from its newest checkpoint as if nothing had happened; each task is trained once."""

import threading
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from asyncrl.algo.objective import build_objective
from asyncrl.buffer.ledger import Ledger, LedgerSettings
from asyncrl.config import parse_config
from asyncrl.data.codec import encode_group
from asyncrl.errors import InputError
from asyncrl.extensions.curriculum.curricula import factory
from asyncrl.extensions.curriculum.lease_hook import Proposals, add_pool
from asyncrl.extensions.memory_checkpoints.memory import MemoryCheckpoints
from asyncrl.extensions.sft_phase.settings import SftPhaseConfig
from asyncrl.extensions.sft_phase.trainer import SftPhase
from asyncrl.extensions.swarm.curation import Terms
from asyncrl.extensions.swarm.messages import Fetch, Publish
from asyncrl.extensions.swarm.pool import Quota, Swarm, SwarmPool
from asyncrl.extensions.swarm.protocol import Arrived, Fetched
from asyncrl.extensions.swarm.store import Store
from asyncrl.run.checkpoints import checkpoint_path, complete_checkpoints, state_folder
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.checkpoint.writers import Writers
from asyncrl.train.loop.callbacks import Recording, TrainerCallback
from asyncrl.train.loop.configured import configured
from asyncrl.train.loop.recover import recover
from asyncrl.train.loop.trainer import Trainer
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.types import Task
from asyncrl.weights.publish import PublishReport
from tests.train.contexts import context
from tests.train.factories import group, trajectory
from tests.train.one_step import make_engine
from tests.waiting import wait_until

STEPS = 6


class Killed(Exception):
    """Stands for SIGKILL: nothing runs after it."""


class World:
    """A real ledger, workers that play leased tasks at once, and an engine that remembers its version."""

    def __init__(self, tasks=14):
        self.ledger = Ledger(":memory:", LedgerSettings(2, 0, 2))
        self.ledger.add_tasks([Task(f"t{i:02d}", "gridworld") for i in range(tasks)])
        self.ledger.close_plan()
        self.serving, self.calls, self.kill_at = 0, [], ("", -1)

    def rewards(self, version):
        return [0.0, 1.0]

    def replan(self, version):
        return self.ledger.replan(version)

    def _may_die(self, where, version):
        if self.kill_at == (where, version):
            self.kill_at = ("", -1)
            raise Killed

    def take(self, step, wait_s):
        assert self.serving == self.ledger.version == step
        while (lease := self.ledger.lease("w")) is not None:
            played = group(lease.task.id, self.rewards(lease.version), lease.version)
            self.ledger.put(replace(played, id=lease.id, task=lease.task))
        return self.ledger.take(step).groups

    def publish(self, version, engine):
        self._may_die("before publishing", version)
        self.serving = version
        self.calls.append(version)
        self._may_die("before committing", version)
        return PublishReport(version)

    def commit(self, version):
        self.ledger.commit(version)
        self._may_die("after committing", version)

    def stats(self):
        return self.ledger.stats()

    def pause(self, paused):
        self.ledger.pause(paused)

    def rollback(self, version):
        return self.ledger.rollback_to(version)

    def set_staleness_limit(self, limit):
        self.ledger.set_staleness_limit(limit)


class Run:
    """Trainer processes of one run, one after the other."""

    curriculum = "file_order"
    max_staleness = 0

    def __init__(self, model, folder, world, every=2, num_steps=STEPS, **train):
        self.model, self.folder, self.world, self.every = model, folder, world, every
        self.memory_every = 0
        self.train = {"num_steps": num_steps, **train}
        self.seen, self.tasks, self.said = {}, {}, {}

    def _record_tasks(self, version, groups, values):
        self.tasks[version] = [g.task.id for g in groups]

    def _record(self, version, metrics):
        numbers = (metrics["loss/total"], metrics["grad_norm"], metrics["learning_rate"])
        self.seen[version] = (numbers, self.tasks[version])
        self.said[version] = metrics.get("guard/message", "")

    def swarm(self):
        """What other runs share with this one."""
        return None

    def process(self):
        """Start a trainer and let it run to its end or death."""
        config = parse_config(
            {
                "model": {"path": "m"},
                "env": {"name": "gridworld"},
                "train": {
                    "max_logp_error": 0,
                    **self.train,
                    "learning_rate": 1e-3,
                    "warmup_steps": 2,
                    "lr_schedule": "cosine",
                },
                "buffer": {"max_staleness": self.max_staleness},
                "curriculum": {"name": self.curriculum},
            }
        )
        engine, objective = make_engine(self.model, 1), build_objective({"preset": "decoupled_ppo"})
        writers = Writers(engine.rank, engine.num_ranks)
        memory = MemoryCheckpoints(self.folder / "memory", writers, self.memory_every, stage=engine.stage)
        saver = Checkpointer(
            self.folder, engine, self.model, every=self.every, copies=[memory], writers=writers
        )
        trainer = Trainer(
            config,
            engine,
            objective,
            AuxiliaryModels(objective),
            self.world,
            self.world,
            saver,
            [
                *configured(context(config, objective, engine, checkpointer=saver)),
                *([Swarm(pool)] if (pool := self.swarm()) is not None else []),
                Recording(self._record, self._record_tasks),
            ],
        )
        try:
            return trainer.run(recover(trainer, saver, self.world, self.world)), trainer.totals
        finally:
            saver.wait()


def test_what_was_sampled_before_a_run_took_the_weights_of_others_is_played_again(tiny_model, tmp_path):
    class Adopting(TrainerCallback):
        def join(self, engine):
            return True

    class Joining(World):
        def publish(self, version, engine):
            self.calls.append(("paused", self.ledger.lease("w") is None, self.stats()["in_flight"]))
            return super().publish(version, engine)

    world = Joining()
    assert world.ledger.lease("w") is not None
    engine, objective = make_engine(tiny_model, 1), build_objective({"preset": "decoupled_ppo"})
    config = parse_config({"model": {"path": "m"}, "env": {"name": "gridworld"}})
    auxiliary = AuxiliaryModels(objective)
    trainer = Trainer(config, engine, objective, auxiliary, world, world, callbacks=[Adopting()])
    assert recover(trainer, Checkpointer(tmp_path, engine, tiny_model), world, world) == 0
    assert world.calls == [("paused", True, 0), 0]
    assert world.ledger.lease("w").task.id == "t00"


@pytest.fixture(scope="module")
def undisturbed(tiny_model, tmp_path_factory):
    run = Run(tiny_model, tmp_path_factory.mktemp("undisturbed"), World())
    version, totals = run.process()
    assert version == STEPS
    return run.seen, totals


@pytest.mark.parametrize(
    ("where", "version"),
    [("before publishing", 1), ("before committing", 4), ("after committing", 4), ("after committing", 5)],
)
def test_a_resumed_run_has_the_losses_and_batches_of_an_undisturbed_one(
    tiny_model, tmp_path, undisturbed, where, version
):
    world = World()
    run = Run(tiny_model, tmp_path, world)
    world.kill_at = (where, version)
    with pytest.raises(Killed):
        run.process()
    end, totals = run.process()
    expected, expected_totals = undisturbed
    assert end == STEPS
    assert run.seen == expected
    assert totals.lags == expected_totals.lags
    assert totals.trained_tokens == expected_totals.trained_tokens
    rates = [run.seen[version][0][2] for version in range(1, STEPS + 1)]
    assert rates == pytest.approx([5e-4, 1e-3, 1e-3, 8.5355e-4, 5e-4, 1.4645e-4], rel=1e-4), "warm-up, cosine"
    stats = world.ledger.stats()
    assert (stats["trained"], stats["pending"], stats["paused"]) == (2 * STEPS, 2, False)


@pytest.mark.parametrize(
    ("where", "version", "damaged", "resumed"),
    [
        ("before publishing", 6, False, 5),
        # The next one was not written: its version was not committed.
        ("before committing", 6, False, 5),
        ("after committing", 6, False, 5),
        ("before publishing", 6, True, 3),
        ("before publishing", 4, False, 3),
    ],
)
def test_a_trainer_resumes_from_memory_where_that_has_a_newer_version_than_the_disk(
    tiny_model, tmp_path, undisturbed, where, version, damaged, resumed
):
    world = World()
    run = Run(tiny_model, tmp_path, world, every=3)
    run.memory_every = 1
    world.kill_at = (where, version)
    with pytest.raises(Killed):
        run.process()
    (kept,) = (tmp_path / "memory").glob("step-*/training.safetensors")
    assert kept.parent.name == f"step-{version - 1:06d}"
    if damaged:
        kept.write_bytes(kept.read_bytes()[:-4])
    before = len(world.calls)
    assert run.process()[0] == STEPS
    assert world.calls[before:] == list(range(resumed, STEPS + 1))
    assert run.seen == undisturbed[0]
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["step-000006"]
    stats = world.ledger.stats()
    assert (stats["trained"], stats["pending"], stats["paused"]) == (2 * STEPS, 2, False)


def test_a_version_in_memory_that_the_ledger_has_not_reached_is_left_and_removed(tiny_model, tmp_path):
    world = World()
    run = Run(tiny_model, tmp_path, world, every=2)
    run.memory_every = 1
    world.kill_at = ("before publishing", 4)
    with pytest.raises(Killed):
        run.process()
    # As of a ledger that was brought back from a copy of its own.
    world.ledger.rollback_to(2)
    before = len(world.calls)
    assert run.process()[0] == STEPS
    assert world.calls[before:] == [2, 3, 4, 5, 6]


def test_a_run_without_checkpoints_starts_again_at_its_first_step(tiny_model, tmp_path, undisturbed):
    world = World()
    run = Run(tiny_model, tmp_path, world, every=0)
    world.kill_at = ("before committing", 3)
    with pytest.raises(Killed):
        run.process()
    assert run.process()[0] == STEPS
    assert run.seen == undisturbed[0]
    assert world.calls == [1, 2, 3, 0, 1, 2, 3, 4, 5, 6]


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(tiny_model, tmp_path, undisturbed):
    world = World()
    run = Run(tiny_model, tmp_path, world)
    world.kill_at = ("before committing", 5)
    with pytest.raises(Killed):
        run.process()
    (state_folder(checkpoint_path(tmp_path, 4)) / "training.safetensors").write_bytes(b"torn")
    assert run.process()[0] == STEPS
    assert run.seen == undisturbed[0]
    assert world.calls == [1, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert [version for version, _ in complete_checkpoints(tmp_path)] == [6, 4], "the newest two"


class Collapsing(World):
    """Versions from 10 on earn little, until weights of before are back; it remembers the weights it was given."""

    def __init__(self):
        super().__init__(tasks=34)
        self.weights, self.bad = {}, set()

    def rewards(self, version):
        return [0.0, 0.25] if version in self.bad else [0.75, 1.0]

    def publish(self, version, engine):
        weights = torch.cat([tensor.flatten().float() for _, tensor in engine.weights()]).clone()
        good = any(torch.equal(weights, self.weights[v]) for v in self.weights if v < 10)
        self.weights[version] = weights
        self.bad = {v for v in self.bad if v < version} | ({version} if version >= 10 and not good else set())
        return super().publish(version, engine)


def collapsed_run(model, folder, kill_at=None):
    run = Run(model, folder, Collapsing(), num_steps=16, collapse_guard=True)
    if kill_at is not None:
        run.world.kill_at = kill_at
        with pytest.raises(Killed):
            run.process()
    assert run.process()[0] == 16
    return run


def test_a_collapse_brings_back_the_last_good_policy_also_in_a_run_that_is_killed(tiny_model, tmp_path):
    run = collapsed_run(tiny_model, tmp_path / "whole")
    weights = run.world.weights
    # Groups earn 0.875 in steps 0 to 9, then 0.125. In step 12 the last four have a mean of 0.3125, and squared
    # deviations of 6 (3/16)^2 + 2 (9/16)^2 = 0.84375, over 7 over 8 groups 0.123^2: 0.5625 is 4.58 times that. The
    # newest good step is 9; checkpoint 8 is older than the two newest.
    assert {version: said for version, said in run.said.items() if said} == {
        13: "step 13: fresh groups earn 0.312, at best it was 0.875 (standard error 0.123); back to version 8; the "
        f"learning rate is now {run.seen[14][0][2]:.2g} (train.collapse_guard)"
    }
    assert torch.equal(weights[13], weights[8])
    assert not torch.equal(weights[12], weights[8])
    stats = run.world.ledger.stats()
    assert (stats["trained"], stats["pending"], stats["ready"]) == (2 * 16, 2, 0), "each task once"
    for number, kill_at in enumerate((("before committing", 13), ("after committing", 15))):
        again = collapsed_run(tiny_model, tmp_path / str(number), kill_at)
        assert (again.seen, again.said) == (run.seen, run.said)


class Replaying(Run):
    """Records what was replayed, too."""

    def __init__(self, model, folder):
        super().__init__(model, folder, World(), replay_groups=1, replay_max_age=2)
        self.replayed = {}

    def _record(self, version, metrics):
        super()._record(version, metrics)
        self.replayed[version] = [metrics.get(f"replay/{name}") for name in ("groups", "tokens", "age_max")]
        assert (metrics["staleness/max"], metrics["batch/groups"]) == (0, 2), "those of fresh groups"


def test_groups_are_replayed_also_after_a_restart_and_count_as_trained_once(
    tiny_model, tmp_path, undisturbed
):
    run = Replaying(tiny_model, tmp_path / "whole")
    version, totals = run.process()
    assert version == STEPS
    assert run.replayed[1] == [None, None, None], "nothing has been trained before the first step"
    # Two episodes of six sampled tokens; on-policy groups are one or two versions old.
    assert all(run.replayed[v][:2] == [1, 12] and run.replayed[v][2] in (1, 2) for v in range(2, STEPS + 1))
    assert (totals.trained_groups, totals.replayed_groups) == (2 * STEPS, STEPS - 1)
    assert run.world.ledger.stats()["trained"] == 2 * STEPS
    assert [run.seen[v][1] for v in run.seen] == [undisturbed[0][v][1] for v in run.seen], (
        "the same fresh groups"
    )
    assert run.seen[1] == undisturbed[0][1]
    assert run.seen[2] != undisturbed[0][2]
    again = Replaying(tiny_model, tmp_path / "killed")
    for kill_at in (("before committing", 4), ("after committing", 5)):
        again.world.kill_at = kill_at
        with pytest.raises(Killed):
            again.process()
    again.process()
    assert (again.seen, again.replayed) == (run.seen, run.replayed)
    assert again.world.ledger.stats()["trained"] == 2 * STEPS


class Mixing(Run):
    """Trains a group of another run in each step, for as long as there are any."""

    def __init__(self, model, folder, store):
        super().__init__(model, folder, World())
        self.store, self.mixed, self.pools = store, {}, []

    def swarm(self):
        """Return a pool that exchanges before each draw."""

        class Prompt(SwarmPool):
            def start(self, version):
                self.version = version

            def draw(self, step, own):
                self.exchange()
                return super().draw(step, own)

        quota = Quota(groups=1, share=1.0, max_age=8, seed=0)
        terms = Terms("gridworld", num_token_ids=10_000, max_tokens=64, max_reward=1.0, inputs=frozenset())
        self.pools.append(Prompt(quota, terms, StoreOf(self.store, "b" * 32)))
        return self.pools[-1]

    def _record(self, version, metrics):
        super()._record(version, metrics)
        self.mixed[version] = [g.task.id.rpartition("/")[2] for g in self.pools[-1].draw(version - 1, ())]
        assert metrics["swarm/mixed"] == len(self.mixed[version])
        assert (metrics["staleness/max"], metrics["batch/groups"]) == (0, 2), "those of own groups"


class StoreOf:
    """The shared rollouts of a swarm, as run `run` meets them."""

    def __init__(self, store, run):
        self.store, self.run = store, run

    def publish(self, bodies):
        told = {"run": self.run, "family": "f" * 32, "name": self.run[:1], "groups": list(bodies)}
        return self.store.publish(Publish(**told))["stored"]

    def fetch(self, store, after, count):
        asked = {"run": self.run, "family": "f" * 32, "store": store, "after": after, "count": count}
        found = self.store.fetch(Fetch(**asked))
        return Fetched(found["store"], found["last"], [Arrived(**one) for one in found["groups"]])


def test_groups_of_other_runs_are_trained_once_also_after_a_restart_and_never_in_the_own_ledger(
    tiny_model, tmp_path, undisturbed
):
    store = Store(tmp_path / "swarm")
    shared = [group(f"their{i}", [0.0, 1.0]) for i in range(5)]
    bare = [replace(g, trajectories=tuple(replace(t, info={}) for t in g.trajectories)) for g in shared]
    StoreOf(store, "a" * 32).publish([encode_group(g) for g in bare])
    run = Mixing(tiny_model, tmp_path / "whole", store)
    version, totals = run.process()
    assert version == STEPS
    # Four are kept ready for a quota of one, so the oldest of the five was not asked for.
    trained = [name for names in run.mixed.values() for name in names]
    assert sorted(trained) == ["their1", "their2", "their3", "their4"]
    assert (totals.trained_groups, totals.external_groups) == (2 * STEPS, 4)
    assert run.world.ledger.stats()["trained"] == 2 * STEPS
    assert [run.seen[v][1] for v in run.seen] == [undisturbed[0][v][1] for v in run.seen], (
        "the same own groups"
    )
    assert run.seen[1] != undisturbed[0][1]
    again = Mixing(tiny_model, tmp_path / "killed", store)
    for kill_at in (("before committing", 4), ("after committing", 5)):
        again.world.kill_at = kill_at
        with pytest.raises(Killed):
            again.process()
    again.process()
    assert (again.seen, again.mixed) == (run.seen, run.mixed)
    store.close()


class Hard(World):
    """A curriculum over two problems; each is solved by one episode in its first group, and then by none."""

    def __init__(self):
        super().__init__()
        hook = partial(Proposals, make=factory("uniform", {}, 2, 0), complete_age=3)
        self.ledger = Ledger(":memory:", LedgerSettings(2, 0, 2), hooks=[hook])
        add_pool(self.ledger, [Task(f"t{i}", "gridworld", i) for i in range(2)], 0)

    def rewards(self, version):
        return [0.0, 1.0] if version in (0, 4) else [0.0, 0.0]


class Completing(Run):
    """Records which successes completed groups, too."""

    curriculum = "uniform"

    def __init__(self, model, folder):
        super().__init__(model, folder, Hard(), complete_groups=True, replay_max_age=3)
        self.completed = {}

    def _record(self, version, metrics):
        super()._record(version, metrics)
        self.completed[version] = [
            metrics.get(f"replay/{name}") for name in ("successes", "tokens", "age_max")
        ]
        assert (metrics["staleness/max"], metrics["batch/groups"], metrics["reward/mean"]) == (
            0, 2, 0.5 if version in (1, 5) else 0.0
        ), "those of what was sampled for the step"  # fmt: skip


def test_groups_are_completed_by_the_same_successes_after_a_restart(tiny_model, tmp_path):
    run = Completing(tiny_model, tmp_path / "whole")
    version, totals = run.process()
    assert version == STEPS
    # Both problems are solved at version 0 and at version 4; a success has two turns of three sampled tokens.
    no, used = [None, None, None], [[2, 12, age] for age in (1, 2, 3)]
    assert list(run.completed.values()) == [no, *used, no, [2, 12, 1]]
    assert (totals.trained_groups, totals.completed_groups, totals.replayed_groups) == (2 * STEPS, 8, 0)
    stats = run.world.ledger.stats()
    assert (stats["trained"], stats["dropped_by_reason"]) == (2 * STEPS, {})
    again = Completing(tiny_model, tmp_path / "killed")
    for kill_at in (("before committing", 3), ("after committing", 4)):
        again.world.kill_at = kill_at
        with pytest.raises(Killed):
            again.process()
    again.process()
    assert (again.seen, again.completed) == (run.seen, run.completed)
    assert again.world.ledger.stats()["trained"] == 2 * STEPS


class Controlled:
    """A trainer whose controller has a staleness limit in force once its state is loaded."""

    def __init__(self, engine, bound):
        self.engine, self.bound = engine, bound

    def load_state_dict(self, state):
        self.bound = state["bound"]

    def staleness_limit(self):
        return self.bound

    def join(self, engine):
        return False


@pytest.mark.parametrize(("saved", "expected"), [(True, 1), (False, 4), (None, 2)])
def test_the_ledger_gets_the_staleness_limit_in_force(tiny_model, tmp_path, saved, expected):
    """saved: whether there is a checkpoint, under bound 1; None where no controller moves the bound."""
    engine = make_engine(tiny_model, 1)
    saver = Checkpointer(tmp_path, engine, tiny_model)
    world = World()
    world.ledger = Ledger(":memory:", LedgerSettings(2, 4, 2))
    world.ledger.set_staleness_limit(2)
    if saved:
        saver.save(0, {"bound": 1})
        saver.wait()
    recover(Controlled(engine, None if saved is None else 4), saver, world, world)
    assert world.stats()["staleness_limit"] == expected


def test_checkpoints_of_another_ledger_are_refused(tiny_model, tmp_path):
    Run(tiny_model, tmp_path, World()).process()
    with pytest.raises(InputError, match="step-000006: is beyond the ledger, which is at version 0"):
        Run(tiny_model, tmp_path, World()).process()


def test_remembered_successes_survive_a_restart():
    phase, again = SftPhase(SftPhaseConfig(every=4)), SftPhase(SftPhaseConfig(every=4))
    phase._remember([trajectory("a", 0, reward=1.0), trajectory("b", 1, turns=3, reward=1.0)])
    again.load_state_dict(phase.state_dict())
    assert list(again.kept) == ["a", "b"]
    for name, kept in phase.kept.items():
        assert (again.kept[name].token_ids == kept.token_ids).all()
        assert again.kept[name].turns == kept.turns
    empty = SftPhase(SftPhaseConfig())
    empty.load_state_dict(SftPhase(SftPhaseConfig()).state_dict())
    assert empty.kept == {}


class BackgroundWorld(World):
    """A version reaches the engine only after the next batch was taken; a trainer may die between the two."""

    def __init__(self, tasks=14):
        super().__init__(tasks)
        self.ledger = Ledger(":memory:", LedgerSettings(2, 1, 2))
        self.ledger.add_tasks([Task(f"t{i:02d}", "gridworld") for i in range(tasks)])
        self.ledger.close_plan()
        self.lock, self.sent = threading.RLock(), {}
        self.restart()

    def restart(self):
        self.dead, self.took = threading.Event(), {STEPS}

    def _may_die(self, where, version):
        if self.kill_at == (where, version):
            self.dead.set()
        super()._may_die(where, version)

    def take(self, step, wait_s):
        with self.lock:
            assert self.serving == self.ledger.version
            while (lease := self.ledger.lease("w")) is not None:
                played = group(lease.task.id, [0.0, 1.0], lease.version)
                self.ledger.put(replace(played, id=lease.id, task=lease.task))
            groups = self.ledger.take(step).groups
            self._may_die("taken ahead", step)
            self.took.add(step)
            return groups

    def gather(self, version, engine):
        self.sent[version] = {name: tensor.clone() for name, tensor in engine.weights()}

        def send():
            wait_until(lambda: version in self.took or self.dead.is_set())
            if self.dead.is_set():
                raise Killed
            return self.publish(version, engine)

        return send

    def publish(self, version, engine):
        with self.lock:
            return super().publish(version, engine)

    def commit(self, version):
        with self.lock:
            super().commit(version)

    def stats(self):
        with self.lock:
            return super().stats()


class BackgroundRun(Run):
    max_staleness = 1


@pytest.mark.parametrize(
    ("where", "version"),
    [("", -1), ("taken ahead", 3), ("taken ahead", 4), ("before committing", 4), ("after committing", 5)],
)
def test_a_trainer_that_dies_with_a_version_on_its_way_resumes_and_trains_each_task_once(
    tiny_model, tmp_path, where, version
):
    world = BackgroundWorld()
    run = BackgroundRun(tiny_model, tmp_path, world)
    world.kill_at = (where, version)
    if where:
        with pytest.raises(Killed):
            run.process()
        assert all(found <= world.ledger.version for found, _ in complete_checkpoints(tmp_path))
        world.restart()
    end, totals = run.process()
    assert end == STEPS
    trained = [task for step in range(1, STEPS + 1) for task in run.tasks[step]]
    assert len(set(trained)) == len(trained) == 2 * STEPS == world.ledger.stats()["trained"]
    assert max(totals.lags) == 1
    for found, path in complete_checkpoints(tmp_path):
        kept = load_file(path / "model.safetensors")
        assert all(torch.equal(kept[name], world.sent[found][name]) for name in kept), "not the next step's"
