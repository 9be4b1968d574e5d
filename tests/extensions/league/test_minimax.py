"""An exploiter's turns are rewarded by the main policy's critic, read from that policy's checkpoints."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from asyncrl.algo.objective import build_objective
from asyncrl.extensions.league.exploiter import Exploiter, Exploiting
from asyncrl.extensions.league.minimax import UNREAD, Minimax, load_minimax
from asyncrl.extensions.league.token_extra import NextStates
from asyncrl.run.checkpoints import MARKER, checkpoint_path
from asyncrl.train.checkpoint.checkpointer import Checkpointer
from asyncrl.train.loop.callbacks import Recording
from asyncrl.train.step.step_batch import build_step_batch
from tests.train.factories import group
from tests.train.one_step import Learner, make_engine, snapshot
from tests.train.one_step_lora import LORA
from tests.train.other_side import (
    GAMMA,
    SETTINGS,
    groups_of_two_sizes,
    learn,
    main_learner,
    others_of,
    paid_by_hand,
    rewards_by_hand,
    save,
    values_of,
    with_states,
)
from tests.train.scripted_run import Scripted, groups_at, make_trainer

ALGO = {"advantage": {"name": "gae_turn", "gamma": GAMMA}}


@pytest.fixture(scope="module", params=["own", "shared"])
def main(request, tiny_model, tmp_path_factory):
    """The main policy, and the folder with a checkpoint of its version 2."""
    folder = tmp_path_factory.mktemp(f"main-{request.param}")
    learner = main_learner(tiny_model, request.param)
    save(learner, folder, tiny_model, 2)
    return learner, folder


def minimax_of(main, model, folder, algo=ALGO):
    learner = Learner(model, {"preset": "grpo"}, lora=LORA)
    return learner.engine, load_minimax(learner.config, build_objective(algo), main.config, folder, model)


def test_the_values_are_those_of_the_main_policys_own_trainer(main, tiny_model):
    learner, folder = main
    groups = groups_of_two_sizes()
    engine, minimax = minimax_of(learner, tiny_model, folder)
    minimax.critic.refresh(engine)
    batch = build_step_batch(groups, 0, 0)
    found = minimax.apply(engine, batch, SETTINGS)
    values = values_of(learner, others_of(groups))
    expected = rewards_by_hand(groups, values, GAMMA)
    assert len(found.turn_rewards) == 5 and {len(one) for one in found.turn_rewards} == {2, 3}
    for row, one in enumerate(expected):
        assert found.turn_rewards[row] == pytest.approx(one, abs=1e-5)
        assert float(found.batch.rewards[row]) == pytest.approx(sum(one), abs=1e-5)
    read = [
        value for one, t in zip(values, batch.trajectories, strict=True) for value in one[: len(t.turns) - 1]
    ]
    assert found.metrics == pytest.approx(
        {"exploiter/critic_version": 2.0, "exploiter/main_value": sum(read) / len(read)}, abs=1e-5
    )
    # They differ from state to state, and the game's rewards are still there.
    assert len({round(value, 5) for value in read}) > 3
    assert [t.reward for t in batch.trajectories] == [0.0, 1.0, -1.0, 1.0, 0.0]


def test_before_the_first_checkpoint_every_state_is_worth_nothing(main, tiny_model, tmp_path):
    engine, minimax = minimax_of(main[0], tiny_model, tmp_path)
    minimax.critic.refresh(engine)
    found = minimax.apply(engine, build_step_batch(groups_of_two_sizes(), 0, 0), SETTINGS)
    assert found.turn_rewards == [[0, 0], [0, 1], [0, -1], [0, 0, 1], [0, 0, 0]]
    assert found.metrics == {"exploiter/critic_version": UNREAD, "exploiter/main_value": 0.0}


def test_a_state_that_nobody_has_answered_has_a_value(main, tiny_model):
    learner, folder = main
    (one,) = groups = [group("a", [0.0, 1.0])]
    other = others_of(groups)[0]
    whole = NextStates((other.token_ids,), ((0, other.turns[0].start), (0, len(other.token_ids))))
    cut = dataclasses.replace(one.trajectories[0], extras={"next_states": whole})
    ended = dataclasses.replace(one.trajectories[1], extras={"next_states": NextStates((), (None, None))})
    engine, minimax = minimax_of(learner, tiny_model, folder)
    minimax.critic.refresh(engine)
    batch = build_step_batch([dataclasses.replace(one, trajectories=(cut, ended))], 0, 0)
    found = minimax.apply(engine, batch, SETTINGS).turn_rewards
    ((first, _),) = values_of(learner, [other])
    asked = torch.tensor([[*other.token_ids.tolist(), 7]])
    mask = torch.arange(asked.shape[1])[None] == len(other.token_ids)
    with torch.no_grad():
        last = learner.auxiliary.parts["critic"].outputs(learner.engine, asked, mask)["values"][0, -1]
    assert found[0] == pytest.approx([-GAMMA * first, -GAMMA * float(last)], abs=1e-5)
    assert found[1] == [0.0, 1.0]


def test_a_batch_without_a_state_needs_no_pass(main, tiny_model):
    engine, minimax = minimax_of(main[0], tiny_model, main[1])
    minimax.critic.refresh(engine)
    found = minimax.apply(engine, build_step_batch([group("a", [0.0, 1.0])], 0, 0), SETTINGS)
    assert found.turn_rewards == [[0.0, 0.0], [0.0, 1.0]]


def test_the_newest_whole_checkpoint_is_read(main, tiny_model, tmp_path):
    learner, folder = main
    shutil.copytree(folder, tmp_path / "main")
    for version in (4, 6):
        shutil.copytree(checkpoint_path(folder, 2), checkpoint_path(tmp_path / "main", version))
    (checkpoint_path(tmp_path / "main", 6) / "config.json").write_text("damaged")
    engine, minimax = minimax_of(learner, tiny_model, tmp_path / "main")
    minimax.critic.refresh(engine)
    assert minimax.critic.version == 4
    (checkpoint_path(tmp_path / "main", 4) / MARKER).unlink()
    shutil.rmtree(checkpoint_path(tmp_path / "main", 2))
    # One that has gone stays what it was.
    minimax.critic.refresh(engine)
    assert minimax.critic.version == 4


def test_the_discount_is_the_exploiters_own(main, tiny_model):
    for algo, gamma in (
        (ALGO, GAMMA), ({"preset": "gigpo"}, 0.95), ({"preset": "dr_mas"}, 1.0), ({"preset": "ppo"}, 1.0),
    ):  # fmt: skip
        assert minimax_of(main[0], tiny_model, main[1], algo)[1].gamma == gamma


@pytest.mark.slow
def test_several_ranks_train_on_the_same_rewards(tiny_model, two_ranks, tmp_path):
    learner = main_learner(tiny_model, "own")
    save(learner, tmp_path / "main", tiny_model, 2)
    two_ranks.call("tests.train.other_side", tiny_model, str(tmp_path / "main"), str(tmp_path))
    first, second = (json.loads((tmp_path / f"minimax-{rank}.json").read_text()) for rank in (0, 1))
    groups = groups_of_two_sizes()
    expected = rewards_by_hand(groups, values_of(learner, others_of(groups)), GAMMA)
    for row, one in enumerate(expected):
        assert first["turn_rewards"][row] == pytest.approx(one, abs=1e-5)
    assert first["step_rewards"] == pytest.approx([sum(one) for one in expected], abs=1e-5)
    assert second["rows"] and second["rows"].items() <= first["rows"].items()
    assert second["metrics"] == first["metrics"]


class Run:
    """An exploiter's trainer whose buffer and engines are a script."""

    def __init__(self, main, model, folder, checkpoints, num_steps, limit=100):
        learner, self.model = main, model
        self.script = Scripted([with_states(groups_at(version)) for version in range(num_steps)])
        self.script.replan = lambda version: None
        self.script.stats = lambda: {"version": 0, "taken": 0, **Scripted.stats(self.script)}
        self.seen, self.values, self.weights = [], [], []
        self.engine = make_engine(model)
        self.trainer = make_trainer(
            self.engine, self.script, num_steps, max_staleness=0,
            on_step=lambda _, metrics: self.seen.append(metrics), preset="grpo",
            callbacks=[Exploiting(Exploiter(limit, 4), lambda _: None, True)],
        )  # fmt: skip
        trainer = self.trainer
        self.reward = load_minimax(trainer.config, trainer.objective, learner.config, checkpoints, model)
        trainer.callbacks += [
            Minimax(self.reward),
            Recording(on_commit=lambda version, groups, values: self.values.append(values)),
        ]
        trainer.checkpointer = Checkpointer(folder, self.engine, model, every=2, keep=9)

    @property
    def versions(self):
        return [metrics["exploiter/critic_version"] for metrics in self.seen]

    def run(self, start=0):
        self.trainer.run(start)
        self.trainer.checkpointer.wait()
        return self


def test_a_step_trains_as_if_the_game_had_given_these_rewards(main, tiny_model, tmp_path):
    learner, folder = main
    run = Run(learner, tiny_model, tmp_path, folder, 1)
    run.reward.critic.refresh(run.engine)
    run.run()
    (values,) = run.values
    groups = with_states(groups_at(0))
    expected = rewards_by_hand(groups, values_of(learner, others_of(groups)), 1.0)
    for row, one in enumerate(expected):
        assert values.turn_rewards[row] == pytest.approx(one, abs=1e-5)
    # A draw and a win in each group, whatever the critic says.
    assert run.seen[0]["exploiter/win_rate"] == pytest.approx((0.9 + 3) / (1.8 + 4))
    assert [t.reward for t in values.rows] == [0.0, 1.0, 1.0, 0.0]
    plain = make_engine(tiny_model)
    script = Scripted([paid_by_hand(groups, values.turn_rewards)])
    make_trainer(plain, script, 1, max_staleness=0, preset="grpo").run()
    trained, given = snapshot(run.engine), snapshot(plain)
    assert all(torch.equal(trained[name], tensor) for name, tensor in given.items())


def test_a_resumed_exploiter_goes_on_with_the_critic_that_it_had(main, tiny_model, tmp_path):
    learner, folder = main
    shutil.copytree(folder, tmp_path / "main")
    whole = Run(learner, tiny_model, tmp_path / "whole", tmp_path / "main", 4).run()
    # It is read where the exploiter saves a checkpoint.
    assert whole.versions == [UNREAD, UNREAD, 2, 2]
    shutil.copytree(checkpoint_path(folder, 2), checkpoint_path(tmp_path / "main", 4))
    again = Run(learner, tiny_model, tmp_path / "whole", tmp_path / "main", 4)
    restored = again.trainer.checkpointer.load(checkpoint_path(tmp_path / "whole", 2))
    again.trainer.load_state_dict(restored.extra)
    again.run(restored.version)
    assert again.versions == [2, 2]
    assert again.reward.critic.version == 4
    for one, other in zip(again.values, whole.values[2:], strict=True):
        assert np.array_equal(one.turn_rewards, other.turn_rewards)
    assert all(
        torch.equal(found, snapshot(whole.engine)[name]) for name, found in snapshot(again.engine).items()
    )


def test_an_exploiter_that_starts_again_keeps_the_critic(main, tiny_model, tmp_path):
    learner, folder = main
    run = Run(learner, tiny_model, tmp_path, folder, 5, limit=3)
    run.run()
    assert [metrics["exploiter/joined"] for metrics in run.seen] == [0, 0, 1, 1, 1]
    assert run.versions == [UNREAD, UNREAD, 2, 2, 2]


def test_another_main_policy_learns_on_and_its_critic_changes(main, tiny_model, tmp_path):
    """What was read is not what is being trained."""
    learner = main_learner(tiny_model, main[0].objective.settings["value"]["trunk"])
    save(learner, tmp_path, tiny_model, 2)
    engine, minimax = minimax_of(learner, tiny_model, tmp_path)
    batch = build_step_batch(groups_of_two_sizes(), 0, 0)
    minimax.critic.refresh(engine)
    first = minimax.apply(engine, batch, SETTINGS).turn_rewards
    learn(learner)
    assert minimax.apply(engine, batch, SETTINGS).turn_rewards == first
    save(learner, tmp_path, tiny_model, 4)
    minimax.critic.refresh(engine)
    assert minimax.critic.version == 4
    assert minimax.apply(engine, batch, SETTINGS).turn_rewards != first
