"""The trainer's loop: take, train, publish, then account; never past the bound, never without an end."""

import threading
import time
from collections import Counter

import pyarrow.parquet as pq
import pytest
import torch

from asyncrl.errors import DeadlineError, StaleError, UnavailableError
from asyncrl.extensions.league.exploiter import Exploiter, Exploiting
from asyncrl.run.checkpoints import MARKER, complete_checkpoints
from asyncrl.services.trainer.recorder import Recorder, make_checkpointer
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.loop.callback_context import TrainerArguments
from asyncrl.train.loop.callbacks import Recording, TrainerCallback, Verdict
from asyncrl.train.loop.schedule import settle
from asyncrl.train.step import step_batch
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.step_batch import StepBatch
from tests.credentials import RUN
from tests.train.one_step import count_codec, make_engine, snapshot
from tests.train.scripted_run import Scripted, groups_at, make_trainer
from tests.waiting import wait_until


@pytest.fixture
def engine(tiny_model):
    return make_engine(tiny_model)


def test_each_version_is_published_before_it_is_committed(engine):
    script = Scripted([groups_at(0), groups_at(0), groups_at(2)])
    trainer = make_trainer(engine, script)
    assert trainer.run() == 3
    sent = [call for call in script.calls if call[0] != "take"]
    assert sent == [(name, k) for k in (1, 2, 3) for name in ("publish", "commit")]
    assert [script.calls.index(("take", k)) < script.calls.index(("publish", k + 1)) for k in range(3)]
    assert trainer.totals.steps == 3
    assert trainer.totals.trained_groups == 6
    assert trainer.totals.lags == {0: 48, 1: 24}
    assert trainer.totals.trained_tokens == 72
    assert trainer.totals.pauses_s == [0.25] * 3


@pytest.mark.parametrize(("schedule", "arriving"), [("partial", 0), ("periodic", 2)])
def test_a_step_decodes_each_group_once_and_builds_one_batch_of_them(engine, monkeypatch, schedule, arriving):
    script = Scripted([groups_at(0), groups_at(1)])
    trainer = make_trainer(engine, script, 2, max_staleness=0, schedule=schedule, max_logp_error=50.0)
    counts = Counter()

    def counted(what, function):
        def call(*args, **kwargs):
            counts[what] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(StepBatch.lags, "func", counted("lags", StepBatch.lags.func))
    monkeypatch.setattr(step_batch, "StepBatch", counted("batches", StepBatch))
    with count_codec(counts):
        assert trainer.run() == 2
    # Each group is prepared for itself first. A streamed step also has one batch of each group that arrives.
    assert counts == {"decoded": 4, "batches": 2 * (1 + 2 + arriving), "lags": 2}


def test_each_step_reports_reward_staleness_and_the_warmed_up_learning_rate(engine):
    seen = []
    script = Scripted([groups_at(0), groups_at(0)])
    make_trainer(engine, script, 2, on_step=lambda version, metrics: seen.append((version, metrics))).run()
    assert [version for version, _ in seen] == [1, 2]
    assert [m["reward/mean"] for _, m in seen] == [0.5, 0.5]
    assert [m["staleness/max"] for _, m in seen] == [0, 1]
    assert [m["learning_rate"] for _, m in seen] == [5e-4, 1e-3]
    assert [m["buffer/ready"] for _, m in seen] == [3, 3]
    assert all(m["tokens/trained"] == 24 and m["batch/groups"] == 2 for _, m in seen)


def test_a_steps_trajectories_are_handed_over_after_its_commit_and_before_its_checkpoint(engine):
    class Saving:
        def due(self, version):
            return True

        def save_due(self, version, extra, after):
            self.writer = threading.Thread(
                target=lambda: (after(), script.calls.append(("save", version))), daemon=True
            )
            self.writer.start()
            return 0.0

        def save_start(self, extra):
            script.calls.append(("save", 0))

        def versions(self):
            return []

        def due_on_disk(self, version):
            return True

        write_s, error = 0.0, ""

    script = Scripted([groups_at(0)])
    trainer = make_trainer(engine, script, 1)
    trainer.checkpointer = Saving()
    trainer.callbacks.append(
        Recording(on_commit=lambda version, groups, _: script.calls.append(("rows", version, len(groups))))
    )
    trainer.run()
    trainer.checkpointer.writer.join(60)
    assert script.calls[-3:] == [("commit", 1), ("rows", 1, 2), ("save", 1)]


def test_weights_are_exchanged_with_other_runs_before_a_version_is_remembered_and_published(engine):
    class Exchanging(TrainerCallback):
        waits = True

        def after_step(self, engine, batch, settings, report):
            script.calls.append(("exchange", batch.step + 1))
            return Verdict({"outer/round": 1.0})

    class Remembering(AuxiliaryModels):
        def after_step(self, engine, version, metrics):
            script.calls.append(("remember", version))
            return super().after_step(engine, version, metrics)

    script, seen = Scripted([groups_at(0)]), []
    trainer = make_trainer(engine, script, 1, on_step=lambda version, metrics: seen.append(metrics))
    trainer.callbacks.append(Exchanging())
    trainer.auxiliary = Remembering(trainer.objective)
    trainer.run()
    assert script.calls[-4:] == [("exchange", 1), ("remember", 1), ("publish", 1), ("commit", 1)]
    assert seen[0]["outer/round"] == 1.0


def test_a_run_leaves_the_trajectories_of_every_step_and_a_checkpoint_finds_those_before_it(
    engine, tiny_model, tmp_path
):
    script = Scripted([groups_at(0), groups_at(1)])
    trainer = make_trainer(engine, script, 2)
    recorder = Recorder(tmp_path, True)
    given = TrainerArguments(
        folder=tmp_path, model=tiny_model, buffer="", engines=[], weights_dir=tmp_path, credentials=RUN
    )
    saver = make_checkpointer(given, trainer.config, engine, trainer.auxiliary, recorder)
    trainer.checkpointer = saver
    trainer.callbacks.append(Recording(recorder.on_step, recorder.on_commit))
    saver.finish(trainer.run(), trainer.state_dict())
    files = sorted(tmp_path.glob("trajectories/*.parquet"))
    assert [file.name for file in files] == ["step-000001.parquet", "step-000002.parquet"]
    assert pq.read_table(files[1]).column("task").to_pylist() == ["a", "a", "b", "b"]
    recorder.close()


def test_the_weight_of_the_entropy_is_steered_from_step_to_step(engine):
    seen = []
    script = Scripted([groups_at(0), groups_at(1)])
    steered = {"entropy_control": {"target": 100.0, "step": 0.5}}
    trainer = make_trainer(engine, script, 2, on_step=lambda _, metrics: seen.append(metrics), **steered)
    trainer.run()
    assert [metrics["entropy_coef"] for metrics in seen] == [0.5, 1.0]
    for metrics, applied in zip(seen, (0.0, 0.5), strict=True):
        assert metrics["loss/total"] == pytest.approx(
            metrics["loss/policy"] - applied * metrics["loss/entropy"], rel=1e-4
        )
    again = make_trainer(engine, script, 2, **steered)
    again.load_state_dict(trainer.state_dict())
    assert again.controls.entropy == trainer.controls.entropy


def test_an_exhausted_plan_ends_the_run_early(engine):
    script = Scripted([groups_at(0), []])
    assert make_trainer(engine, script).run() == 1
    assert script.calls[-1] == ("take", 1)


def test_a_checkpoint_that_cannot_be_written_is_in_the_metrics_of_the_steps_that_follow(
    engine, tiny_model, tmp_path, monkeypatch
):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    seen = []
    script = Scripted([groups_at(0), groups_at(1), groups_at(2)])
    trainer = make_trainer(engine, script, on_step=lambda version, metrics: seen.append(metrics))
    trainer.checkpointer = Checkpointer(tmp_path, engine, tiny_model, every=1)
    monkeypatch.setattr("asyncrl.train.checkpoint.checkpointer.save_file", full)
    trainer.run()
    assert "checkpoint/error" not in seen[0]
    assert seen[2]["checkpoint/error"] == "OSError: [Errno 28] No space left on device"


class Asking(TrainerCallback):
    """Ends the run when `asked` says so."""

    def __init__(self, asked):
        self.asked = asked

    def asked_to_stop(self):
        return self.asked()


@pytest.mark.parametrize("schedule", ["partial", "periodic"])
def test_a_trainer_that_is_asked_to_stop_ends_between_steps(engine, schedule):
    script = Scripted([groups_at(0), groups_at(1), groups_at(2)])
    trainer = make_trainer(engine, script, max_staleness=0, schedule=schedule)
    trainer.callbacks.append(Asking(lambda: ("commit", 2) in script.calls))
    assert trainer.run() == 2
    assert trainer.stopped
    assert [call for call in script.calls if call[0] == "commit"] == [("commit", 1), ("commit", 2)]
    assert ("take", 2) not in script.calls


def test_a_trainer_that_waits_for_groups_stops_when_asked(engine):
    script = Scripted([groups_at(0), None])
    trainer = make_trainer(engine, script)
    trainer.callbacks.append(Asking(lambda: script.calls.count(("take", 1)) == 2))
    assert trainer.run() == 1
    assert trainer.stopped


def test_a_trainer_that_nobody_asks_to_stop_has_not_stopped(engine):
    trainer = make_trainer(engine, Scripted([groups_at(0), []]))
    trainer.run()
    assert not trainer.stopped


def test_a_batch_that_does_not_come_in_time_ends_the_run_by_name(engine):
    script = Scripted([None])
    script.dropped = {"no_signal": 120, "too_long": 1}
    with pytest.raises(DeadlineError, match=r"step 0: no batch within buffer.wait_timeout_s=5") as error:
        make_trainer(engine, script).run()
    assert str(error.value).endswith(
        "; 3 of 16 groups are ready and 2 are being played; dropped in this run: no_signal 120, too_long 1; the "
        "rollout workers' logs say what they are waiting for"
    )


@pytest.mark.parametrize("schedule", ["synchronous", "periodic"])
def test_the_time_to_wait_for_a_batch_begins_when_there_are_tasks(engine, schedule):
    """The base model is evaluated first, for as long as that takes."""

    class Late(Scripted):
        """Has tasks at the tenth look, and a batch at the twelfth."""

        looks = 0

        def stats(self):
            self.looks += 1
            return super().stats() | {"admitted": 3 if self.looks >= 10 else 0}

        def take(self, step, wait_s):
            return super().take(step, wait_s) if self.looks >= 10 else None

        def peek(self, step, seen, wait_s):
            time.sleep(0.02)
            return super().peek(step, seen, wait_s) if self.looks >= 10 else ([], False)

    script = Late([groups_at(0), []])
    trainer = make_trainer(engine, script, max_staleness=0, schedule=schedule, wait_timeout_s=0.1)
    assert trainer.run() == 1
    assert script.looks >= 10
    never = make_trainer(
        engine, Scripted([None]), max_staleness=0, schedule="synchronous", wait_timeout_s=0.1
    )
    with pytest.raises(DeadlineError, match=r"no batch within buffer.wait_timeout_s=0\.1"):
        never.run()


def test_a_batch_has_time_as_long_as_its_groups_become_ready(engine):
    """Many slow episodes on one engine are no reason to end a run."""

    class Slow(Scripted):
        """Has a group more at every look, and the batch at the twelfth; a look takes as long as a batch may."""

        looks = 0

        def take(self, step, wait_s):
            time.sleep(wait_s)
            self.looks += 1
            return super().take(step, wait_s) if self.looks >= 12 else None

        def stats(self):
            return super().stats() | {"ready": min(self.looks, self.most)}

    script = Slow([groups_at(0), []])
    script.most = 12
    assert make_trainer(engine, script, wait_timeout_s=0.1).run() == 1
    script = Slow([groups_at(0), []])
    script.most = 5
    with pytest.raises(
        DeadlineError, match="and no group has become ready meanwhile; 5 of 16 groups are ready"
    ):
        make_trainer(engine, script, wait_timeout_s=0.1).run()
    assert script.looks == 6


def test_a_stale_batch_is_refused_before_anything_is_trained_or_published(engine):
    before = snapshot(engine)
    script = Scripted([[], [], groups_at(0)])
    with pytest.raises(StaleError):
        make_trainer(engine, script, max_staleness=1).run(start=2)
    assert script.calls == [("take", 2)]
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.weights())


def test_a_version_that_no_engine_took_is_not_committed(engine):
    script = Scripted([groups_at(0), groups_at(0), None], fail_publish_of=2)
    with pytest.raises(UnavailableError):
        make_trainer(engine, script).run()
    assert ("commit", 1) in script.calls
    assert ("commit", 2) not in script.calls


class SlowlyPublished(Scripted):
    """A version is with the engines only after the next batch was taken."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.took = [threading.Event() for _ in [*self.batches, None]]

    def take(self, step, wait_s):
        self.took[step].set()
        return super().take(step, wait_s)

    def gather(self, version, engine):
        self.calls.append(("gather", version))
        return super().gather(version, engine)

    def publish(self, version, engine):
        assert self.took[version].wait(60)
        return super().publish(version, engine)


def test_the_next_batch_is_trained_while_a_version_is_on_its_way_and_one_version_at_most_is(engine):
    script, seen = SlowlyPublished([groups_at(0), groups_at(0), groups_at(1), []]), []
    trainer = make_trainer(
        engine, script, 9, on_step=lambda version, metrics: seen.append((version, metrics))
    )
    assert trainer.run() == 3
    assert script.calls == [
        ("take", 0), ("gather", 1),
        ("take", 1), ("publish", 1), ("commit", 1), ("gather", 2),
        ("take", 2), ("publish", 2), ("commit", 2), ("gather", 3),
        ("take", 3), ("publish", 3), ("commit", 3),
    ]  # fmt: skip
    assert [version for version, _ in seen] == [1, 2, 3]
    assert all(metrics["time/pause_s"] == 0.25 for _, metrics in seen)
    assert trainer.totals.pauses_s == [0.25] * 3
    assert trainer.totals.lags == {0: 24, 1: 48}


def test_a_version_that_fails_in_the_background_ends_the_wait_for_the_next_batch_by_its_reason(engine):
    script = SlowlyPublished([groups_at(0), None], fail_publish_of=1)
    with pytest.raises(UnavailableError, match="no engine took it"):
        make_trainer(engine, script).run()
    assert [call for call in script.calls if call[0] == "commit"] == []


def test_a_step_that_cannot_be_written_down_ends_the_run(engine):
    def full(version, metrics):
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        make_trainer(engine, Scripted([groups_at(0), None]), on_step=full).run()


def test_time_in_which_a_version_is_on_its_way_is_no_part_of_the_wait_for_a_batch(engine):
    class Late(SlowlyPublished):
        """Has the second batch once the version is committed, which takes longer than a batch may."""

        def take(self, step, wait_s):
            return super().take(step, wait_s) if step == 0 or ("commit", 1) in self.calls else None

        def publish(self, version, engine):
            time.sleep(0.5)
            return Scripted.publish(self, version, engine)

    trainer = make_trainer(engine, Late([groups_at(0), []]), wait_timeout_s=0.1)
    assert trainer.run() == 1


def test_a_checkpoint_is_complete_only_when_its_version_is_committed(engine, tiny_model, tmp_path):
    found = []

    class Looking(SlowlyPublished):
        def publish(self, version, engine):
            published = super().publish(version, engine)
            wait_until(lambda: any(tmp_path.glob("*.partial")))
            found.append([path.name for path in tmp_path.glob("step-*") if path.suffix != ".partial"])
            return published

    trainer = make_trainer(engine, Looking([groups_at(0), groups_at(0), []]), 9)
    trainer.checkpointer = Checkpointer(tmp_path, engine, tiny_model, every=1, keep=5)
    version = trainer.run()
    trainer.checkpointer.finish(version, trainer.state_dict())
    assert found == [[], ["step-000001"]]
    assert [version for version, _ in complete_checkpoints(tmp_path)] == [2, 1]


@pytest.mark.parametrize("max_staleness", [1, 0], ids=["in the background", "at once"])
def test_a_checkpoint_is_complete_only_when_its_step_is_recorded(engine, tiny_model, tmp_path, max_staleness):
    """A run whose trainer dies in between would go on from it without that record."""
    found = []

    def record(version, metrics):
        assert metrics["time/checkpoint_s"] > 0
        wait_until(lambda: any(tmp_path.glob(f"*.partial/{MARKER}")))
        found.append([path.name for path in tmp_path.glob("step-*") if path.suffix != ".partial"])

    trainer = make_trainer(engine, Scripted([groups_at(0), []]), max_staleness=max_staleness, on_step=record)
    trainer.checkpointer = Checkpointer(tmp_path, engine, tiny_model, every=1, keep=5)
    assert trainer.config.publishes_in_background == bool(max_staleness)
    version = trainer.run()
    trainer.checkpointer.finish(version, trainer.state_dict())
    assert found == [[]]
    assert [version for version, _ in complete_checkpoints(tmp_path)] == [1]


@pytest.mark.parametrize(("schedule", "staleness"), [("partial", 0), ("synchronous", 0), ("one_step_off", 1)])
def test_schedules_that_wait_for_each_version_publish_at_once(engine, schedule, staleness):
    class AtOnce(Scripted):
        def gather(self, version, engine):
            raise AssertionError

        def stats(self):
            return super().stats() | {"in_flight": 0, "free_slots": 0}

    script = AtOnce([groups_at(0), groups_at(1)])
    assert make_trainer(engine, script, 2, staleness, schedule=schedule).run() == 2
    kept = [call for call in script.calls if call[0] != "look"]
    assert kept == [(name, k + (name != "take")) for k in range(2) for name in ("take", "publish", "commit")]


def test_the_periodic_schedule_trains_on_groups_as_they_come(tiny_model):
    streamed, whole = make_engine(tiny_model), make_engine(tiny_model)
    script = Scripted([groups_at(0), groups_at(1)])
    trainer = make_trainer(streamed, script, 2, max_staleness=0, schedule="periodic")
    assert trainer.run() == 2
    assert script.calls == [
        call
        for k in range(2)
        for call in (("peek", 0), ("peek", 1), ("take", k), ("publish", k + 1), ("commit", k + 1))
    ]
    make_trainer(whole, Scripted([groups_at(0), groups_at(1)]), 2, max_staleness=0).run()
    for name, tensor in snapshot(whole).items():
        torch.testing.assert_close(snapshot(streamed)[name], tensor, atol=1e-4, rtol=0)
    assert trainer.totals.trained_tokens == 48


def test_the_one_step_off_schedule_publishes_when_nothing_is_in_flight(engine):
    class Busy(Scripted):
        looks = 0

        def stats(self):
            self.looks += 1
            self.calls.append(("look", self.looks))
            left = max(0, 3 - self.looks)
            return {
                "in_flight": left,
                "ready": 2 - left,
                "taken": 2,
                "free_slots": 0,
                "plan_closed": False,
                "pending": 9,
            }

    script = Busy([groups_at(0)])
    make_trainer(engine, script, 1, schedule="one_step_off").run()
    order = [name for name, _ in script.calls]
    assert order == ["take", "look", "look", "look", "publish", "commit", "look"]


def test_what_never_finishes_ends_the_wait_by_name():
    stuck = {"in_flight": 2, "ready": 0, "taken": 2, "free_slots": 0, "plan_closed": False, "pending": 9}
    with pytest.raises(DeadlineError, match="2 groups were still in flight"):
        settle(lambda: stuck, 0.0)


def test_free_slots_with_tasks_left_are_waited_for_and_without_are_not():
    state = {"in_flight": 0, "ready": 1, "taken": 2, "free_slots": 1, "plan_closed": True, "pending": 1}
    with pytest.raises(DeadlineError):
        settle(lambda: state, 0.0)
    assert settle(lambda: state | {"pending": 0}, 0.0) is None


def test_an_exploiter_that_wins_joins_the_population_and_starts_again(engine, tiny_model, tmp_path):
    """Of each group one episode is won and one drawn: 3 of 4 points."""
    script, seen = Scripted([groups_at(0), groups_at(1), groups_at(2)]), []
    script.replan = lambda version: script.calls.append(("replan", version))
    exploiting = Exploiting(Exploiter(2, 4), lambda versions: script.calls.append(("join", *versions)), True)
    trainer = make_trainer(
        engine,
        script,
        max_staleness=0,
        on_step=lambda _, metrics: seen.append(metrics),
        callbacks=[exploiting],
    )
    trainer.checkpointer = Checkpointer(tmp_path, engine, tiny_model, every=10)
    first, published = snapshot(engine), {}
    publish = script.publish

    def keeping(version, engine):
        published[version] = snapshot(engine)
        return publish(version, engine)

    script.publish = keeping
    assert trainer.run() == 3
    # Win rates 3.9 / 5.8 and 6.51 / 9.22: that of version 1 is above 0.7.
    assert [metrics["exploiter/win_rate"] for metrics in seen] == pytest.approx(
        [0.672, 0.706, 0.672], abs=1e-3
    )
    assert [metrics["exploiter/joined"] for metrics in seen] == [0, 1, 1]
    sent = [call for call in script.calls if call[0] not in ("take", "save")]
    assert sent[0] == ("join",)
    assert sent[3:7] == [("publish", 2), ("commit", 2), ("replan", 2), ("join", 1)]
    assert all(torch.equal(first[name], published[2][name]) for name in first)
    assert any(not torch.equal(first[name], published[1][name]) for name in first)
    assert any(not torch.equal(first[name], published[3][name]) for name in first)
    assert exploiting.exploiter.served(3) == [1]
    other = Exploiting(Exploiter(2, 4), lambda _: None, True)
    make_trainer(engine, script, callbacks=[other]).load_state_dict(trainer.state_dict())
    assert other.exploiter.state == exploiting.exploiter.state
