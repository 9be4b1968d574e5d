"""Runs that train one policy together: what is merged when, what a resumed run sends, and who goes on alone."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from asyncrl.config import parse_config
from asyncrl.errors import ConfigError, DeadlineError, StopError
from asyncrl.extensions.outer import exchange as outer_exchange
from asyncrl.extensions.outer.client import OuterClient
from asyncrl.extensions.outer.exchange import OuterExchange
from asyncrl.extensions.outer.rounds import Rounds
from asyncrl.extensions.outer.service import create_outer_app
from asyncrl.train.engine.full_state import gather_weights, set_weights
from tests.app_thread import AppThread, free_port
from tests.credentials import RUN
from tests.train.one_step import make_engine, step_once

STEPS = 100


class Together:
    """An outer optimizer's service, and the runs that use it."""

    def __init__(self, model, folder):
        self.model, self.folder, self.exchanges = model, folder, []
        self.start()

    def start(self):
        self.rounds = Rounds(self.folder / "outer")
        ready = f"ready-{len(list(self.folder.iterdir()))}"
        self.app = AppThread(create_outer_app(self.rounds, RUN.access("outer")), self.folder, ready)

    def end(self):
        for one in self.exchanges:
            one.leave()
        self.app.close()
        self.rounds.close()

    def member(self, number=0, run=None, engine=None, url="", state=None, **outer):
        settings = {
            "url": url or self.app.url, "members": 2, "member": number, "every": 2,
            "learning_rate": 1.0, "momentum": 0.0, **outer,
        }  # fmt: skip
        config = parse_config(
            {
                "model": {"path": "m"},
                "env": {"name": "gridworld"},
                "run": {"start_timeout_s": 1.0},
                "train": {"num_steps": STEPS},
                "outer": settings,
            }
        )
        client = OuterClient(config.outer, RUN.bearer("outer"), run or f"{number}" * 32, f"run-{number}")
        found = Member(engine or make_engine(self.model), OuterExchange(config, client))
        self.exchanges.append(found.exchange)
        found.exchange.load_state_dict(state or {})
        found.adopted = found.exchange.join(found.engine)
        return found


class Member:
    adopted = False

    def __init__(self, engine, exchange):
        self.engine, self.exchange = engine, exchange
        self.names = [piece.name for piece in engine.pieces]

    @property
    def weights(self):
        return {name: one.numpy() for name, one in gather_weights(self.engine, self.names).items()}

    def move(self, by):
        set_weights(
            self.engine,
            self.names,
            {n: torch.from_numpy(w + np.float32(by)) for n, w in self.weights.items()},
        )

    def step(self, version, by=0.0):
        self.move(by)
        return self.exchange.after_step(self.engine, version)


def step_all(members, version, *by):
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda one, moved: one.step(version, moved), members, by))


def moved(before, by):
    return {name: one + np.float32(by) for name, one in before.items()}


def assert_weights(member, expected, atol=1e-6):
    for name, one in member.weights.items():
        np.testing.assert_allclose(one, expected[name], atol=atol, err_msg=name)


def assert_same(first, second):
    assert all(np.array_equal(one, second.weights[name]) for name, one in first.weights.items())


@pytest.fixture
def together(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(outer_exchange, "LOOK_S", 0.1)
    monkeypatch.setattr(outer_exchange, "PAUSE_S", 0.1)
    monkeypatch.setattr(outer_exchange, "MARGIN_S", 0.1)
    monkeypatch.setattr("asyncrl.extensions.outer.client.RETRY_S", 0.1)
    found = Together(tiny_model, tmp_path)
    yield found
    found.end()


def test_every_h_steps_all_members_go_on_from_the_mean_of_their_weights(together):
    members = [together.member(0), together.member(1)]
    start = members[0].weights
    metrics = step_all(members, 1, 0.25, 0.5)
    # The first has given its weights to the other, and nothing was due yet.
    assert metrics[0]["outer/sent_bytes"] == metrics[1]["outer/received_bytes"] > 0
    assert [one["outer/round"] for one in metrics] == [one["outer/alone"] for one in metrics] == [0.0, 0.0]
    assert "outer/members" not in metrics[0]
    assert_weights(members[1], moved(start, 0.5))
    metrics = step_all(members, 2, 0.25, 0.5)
    assert_weights(members[0], moved(start, 0.75))
    assert_same(*members)
    assert [one["outer/members"] for one in metrics] == [2.0, 2.0]
    assert metrics[0]["outer/sent_bytes"] == metrics[0]["outer/received_bytes"] > 0


def test_the_policy_itself_has_the_merged_weights_and_the_optimizer_its_moments(together):
    member = together.member(0)
    step_once(member.engine)
    before = {n: dict(s) for n, s in enumerate(member.engine.optimizer.state.values())}
    member.step(2, 1.0)
    parameters = dict(member.engine.engine.module.named_parameters())
    assert all(np.array_equal(parameters[n].detach().numpy(), w) for n, w in member.weights.items())
    after = dict(enumerate(member.engine.optimizer.state.values()))
    assert before and all(torch.equal(before[n]["exp_avg"], after[n]["exp_avg"]) for n in before)


@pytest.mark.parametrize(
    ("stage", "dtype"), [(1, "float32"), (3, "float32"), (1, "bfloat16"), (2, "bfloat16"), (3, "bfloat16")]
)
def test_weights_reach_optimizer_and_model_under_every_zero_stage(tiny_model, stage, dtype):
    member = Member(make_engine(tiny_model, stage, dtype), None)
    step_once(member.engine)
    # Too little for bfloat16.
    expected = moved(member.weights, 2e-4)
    member.move(2e-4)
    assert all(np.array_equal(member.weights[name], one) for name, one in expected.items())
    published = dict(member.engine.weights())
    for name, one in expected.items():
        found = published[name.removeprefix("model.")]
        assert torch.equal(found, torch.from_numpy(one).to(found.dtype))
    step_once(member.engine)
    assert not np.array_equal(member.weights[member.names[0]], expected[member.names[0]])


def test_a_run_that_joins_late_takes_the_global_weights(together):
    first = together.member(0)
    assert not first.adopted
    first.step(2, 1.0)
    late = together.member(1)
    assert late.adopted
    assert_same(first, late)


def test_fragments_are_merged_apart_and_later_while_training_goes_on(together):
    member = together.member(0, fragments=2, delay=1, mix=0.25)
    start = member.weights
    parts = [set(one) for one in member.exchange._fragments]
    assert parts[0] and parts[1] and not parts[0] & parts[1]

    def expected(*by):
        return {name: w + np.float32(by[0] if name in parts[0] else by[1]) for name, w in start.items()}

    member.step(1, 1.0)  # fragment 1 is sent
    assert_weights(member, expected(1.0, 1.0))
    member.step(2, 1.0)  # its result, +1, is mixed with the member's own +2; fragment 0 is sent
    assert_weights(member, expected(2.0, 0.25 * 2.0 + 0.75 * 1.0))
    member.step(3, 1.0)  # the result of fragment 0 is +2, its own +3; fragment 1 is sent
    assert_weights(member, expected(0.25 * 3.0 + 0.75 * 2.0, 2.25))


def test_the_last_step_exchanges_everything(together):
    members = [together.member(number, fragments=2, delay=1, mix=0.5) for number in (0, 1)]
    start = members[0].weights
    step_all(members, STEPS, 1.0, 3.0)
    assert_weights(members[0], moved(start, 2.0))
    assert_same(*members)


@pytest.mark.parametrize("bits", [8, 4])
def test_with_few_bits_all_members_have_the_same_weights_and_lose_nothing_in_the_long_run(together, bits):
    members = [together.member(number, bits=bits) for number in (0, 1)]
    start, exact = members[0].weights, [members[0].weights, members[0].weights]
    rng = np.random.default_rng(0)
    whole = 4 * sum(w.size for w in start.values())
    step_all(members, 1, 0.0, 0.0)
    for version in (2, 4, 6):
        for number, member in enumerate(members):
            own = {n: rng.normal(0, 0.01, w.shape).astype(np.float32) for n, w in start.items()}
            exact[number] = {n: w + own[n] for n, w in exact[number].items()}
            changed = {n: torch.from_numpy(w + own[n]) for n, w in member.weights.items()}
            set_weights(member.engine, member.names, changed)
        metrics = step_all(members, version, 0.0, 0.0)
        assert_same(*members)
        assert metrics[0]["outer/sent_bytes"] < 1.5 * bits / 32 * whole
        assert metrics[0]["outer/received_bytes"] < 1.5 * bits / 32 * whole
    mean = {n: (exact[0][n] + exact[1][n]) / 2 for n in start}
    # What is missing is the rounding of the last round alone.
    assert_weights(members[0], mean, atol=0.06 * 2 / {8: 127, 4: 7}[bits])


@pytest.mark.parametrize("late", [False, True])
def test_a_resumed_run_sends_what_it_has_trained_since_once(together, late):
    if late:
        together.member(1).exchange.service.leave()
    member = together.member(0)
    start = member.weights
    member.step(2, 1.0)
    member.step(3, 1.0)
    state = member.exchange.state_dict()
    kept = {name: torch.from_numpy(w.copy()) for name, w in member.weights.items()}
    member.step(4, 1.0)  # counted, and then the run is killed before its next checkpoint
    again = make_engine(together.model)
    set_weights(again, member.names, kept)
    resumed = together.member(0, engine=again, state=state)
    assert not resumed.adopted
    assert_weights(resumed, moved(start, 2.0))
    resumed.step(4, 1.5)  # the same version again, trained a little otherwise
    assert_weights(resumed, moved(start, 3.0))
    resumed.step(6, 1.0)
    assert_weights(resumed, moved(start, 4.0))


def distance(*members):
    """Root mean square difference of members' weights from their mean."""
    of = [np.concatenate([one.ravel() for one in member.weights.values()]) for member in members]
    return float(np.std(of, axis=0).mean())


def test_members_that_gossip_stay_near_each_other_and_a_killed_one_goes_on_where_it_was(together):
    # Pairs: (0, 1), (0, 1), (0, 2), and one alone each time.
    members = [together.member(number, members=3, method="gossip") for number in range(3)]
    start = members[0].weights
    metrics = step_all(members, 2, 1.0, 2.0, 3.0)
    assert [one["outer/members"] for one in metrics] == [2.0, 2.0, 1.0]
    for member, by in zip(members, (1.5, 1.5, 3.0), strict=True):
        assert_weights(member, moved(start, by))
    state = members[0].exchange.state_dict()
    kept = {name: torch.from_numpy(w.copy()) for name, w in members[0].weights.items()}
    step_all(members, 4, 1.0, 1.0, 0.0)
    assert_weights(members[0], moved(start, 2.5))
    again = make_engine(together.model)
    set_weights(again, members[0].names, kept)
    members[0] = together.member(0, members=3, method="gossip", engine=again, state=state)
    assert not members[0].adopted
    # Its steps to version 4 have been counted; otherwise trained, they change nothing.
    members[0].step(4, 5.0)
    assert_weights(members[0], moved(start, 2.5))
    apart = distance(*members)
    step_all(members, 6, 0.0, 0.0, 0.0)
    for member, by in zip(members, (2.75, 2.5, 2.75), strict=True):
        assert_weights(member, moved(start, by))
    assert distance(*members) == pytest.approx(apart / 2, rel=1e-2)


def test_a_contribution_that_is_under_way_is_finished_by_the_resumed_run(together):
    member = together.member(0, delay=1)
    other = together.member(1, delay=1)
    start = member.weights
    member.step(2, 1.0)
    state = member.exchange.state_dict()
    assert state["pending"][0]["version"] == 2
    resumed = together.member(0, delay=1, state=state)
    resumed.move(1.0)
    other.step(2, 3.0)
    step_all([resumed, other], 3, 0.0, 0.0)
    assert_weights(resumed, moved(start, 2.0))
    assert_same(resumed, other)


def test_a_run_goes_on_alone_while_nobody_answers_and_keeps_what_it_trains(together, caplog):
    member = together.member(0, wait_timeout_s=0.3)
    start = member.weights
    together.app.close()
    together.rounds.close()
    metrics = member.step(2, 1.0)
    assert metrics["outer/alone"] == 1.0
    assert "this run goes on alone" in caplog.text
    member.step(4, 1.0)
    assert_weights(member, moved(start, 2.0))
    together.start()
    member.exchange.service._http.url = member.exchange.service._http._at = together.app.url
    version = 5
    while member.step(version, 0.0)["outer/alone"]:
        version += 1
    # The result, +1, and all that was trained since it was sent.
    assert_weights(member, moved(start, 2.0))
    member.step(version + 1 + version % 2, 1.0)
    assert_weights(member, moved(start, 3.0))


@pytest.mark.slow
def test_the_ranks_of_a_run_exchange_together(together, two_ranks, tmp_path):
    engine = make_engine(together.model)
    Member(engine, None).move(0.5)
    first = together.member(0, engine=engine, fragments=2, bits=8)
    start = {name: one.copy() for name, one in first.weights.items()}
    with ThreadPoolExecutor(1) as pool:
        ranks = pool.submit(
            two_ranks.call,
            "tests.extensions.outer.outer_ranks",
            together.model,
            together.app.url,
            str(tmp_path),
        )
        while len(together.rounds.members) < 2:
            assert not ranks.done(), ranks.result()
        # The first step of the run of two ranks is its last: it sends all.
        first.exchange.num_steps = 2
        first.step(2, 0.5)
        ranks.result()
    expected = {name.removeprefix("model."): torch.from_numpy(one) for name, one in first.weights.items()}
    for rank in (0, 1):
        found = load_file(tmp_path / f"rank-{rank}.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(one, expected[name]) for name, one in found.items())
    # The mean of 0.5, and of 1.0 with one step at a rate of 0.001.
    assert_weights(first, moved(start, 0.75), atol=0.02)


def test_a_run_ends_when_another_has_taken_its_place(together):
    first = together.member(0)
    together.member(0, run="f" * 32)
    with pytest.raises(
        StopError, match=r"step 2: the outer optimizer refuses this run: .*has taken the place"
    ):
        first.step(2, 1.0)


def test_settings_and_addresses_that_do_not_fit_end_the_start(together, monkeypatch):
    together.member(0)
    with pytest.raises(ConfigError, match=r"outer\.momentum: the other members have 0\.0, got 0\.5"):
        together.member(1, momentum=0.5)
    with pytest.raises(DeadlineError, match=r"outer\.url: .* does not answer within run\.start_timeout_s=1"):
        together.member(1, url=f"http://127.0.0.1:{free_port()}")
