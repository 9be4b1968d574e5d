"""What each curriculum proposes and believes, on numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.curriculum import curricula
from asyncrl.extensions.curriculum.curricula.gdro import GDRO
from asyncrl.extensions.curriculum.curricula.insight import InSight
from asyncrl.extensions.curriculum.curricula.paced import Paced, pace
from asyncrl.extensions.curriculum.curricula.similarity import Similarity
from asyncrl.extensions.curriculum.curricula.staged import Staged
from asyncrl.extensions.curriculum.curricula.uniform import Uniform
from asyncrl.extensions.curriculum.curricula.v0 import V0
from asyncrl.extensions.curriculum.curricula.vade import VADE
from asyncrl.extensions.curriculum.curricula.window import DifficultyWindow
from asyncrl.extensions.curriculum.curricula.xrpo import XRPO, allocate, half_width, priorities
from asyncrl.extensions.curriculum.curriculum import Outcome, largest
from asyncrl.extensions.curriculum.embedding import embed
from asyncrl.types import Task

GROUP = 4


def pool(count, levels=None):
    levels = levels or [0] * count
    return [Task(f"t{i}", "gridworld", i, data={"level": levels[i]}) for i in range(count)]


def outcome(place, successes):
    return Outcome(place, tuple(map(float, successes)), tuple(map(float, successes)))


def places(curriculum, count, number=0, busy=()):
    return [proposal.place for proposal in curriculum.propose(count, number, busy)]


def with_rates(curriculum, rates, weight=1000):
    """Set the beliefs to these success rates, as after `weight` episodes."""
    curriculum.alpha, curriculum.beta = np.array(rates) * weight, (1 - np.array(rates)) * weight
    return curriculum


@pytest.mark.parametrize("name", curricula.CURRICULA)
def test_proposals_follow_from_seed_state_and_number_and_change_nothing(name):
    tasks = pool(12, levels=[i // 4 for i in range(12)])
    first, other = (curricula.factory(name, {}, GROUP, seed=3)(tasks) for _ in range(2))
    for version in range(3):
        outcomes = [outcome(p, [1, 0, p % 2, 0]) for p in places(first, 3, 3 * version)]
        first.observe(outcomes)
    other.load_state(first.state())
    asked = first.propose(5, 9, busy={1, 2})
    assert other.propose(5, 9, busy={1, 2}) == asked
    assert first.propose(5, 9, busy={1, 2}) == asked
    another_seed = curricula.factory(name, {}, GROUP, seed=4)(tasks)
    another_seed.load_state(first.state())
    assert any(places(another_seed, 5, n) != places(first, 5, n) for n in range(9, 59, 5))
    assert sum(p.rollouts for p in asked) == 5 * GROUP


@pytest.mark.parametrize("name", [n for n in curricula.CURRICULA if n not in ("uniform", "similarity")])
def test_a_batch_repeats_no_task_and_leaves_busy_ones_alone_while_there_are_others(name):
    made = curricula.factory(name, {}, GROUP, seed=0)(pool(6, levels=[0] * 6))
    assert sorted(places(made, 6)) == list(range(6))
    assert sorted(places(made, 3, busy={0, 2, 4})) == [1, 3, 5]
    assert sorted(places(made, 5, busy={0, 2, 4})[:3]) == [1, 3, 5]
    assert len(places(made, 8)) == 8


def test_uniform_goes_through_the_pool_once_in_each_pass():
    made = Uniform(pool(5), GROUP, 0)
    proposed = places(made, 3) + places(made, 3, 3) + places(made, 4, 6)
    assert sorted(proposed[:5]) == sorted(proposed[5:]) == list(range(5))
    assert proposed[:5] != proposed[5:]
    assert made.propose(1, 0)[0].predicted is None
    made.observe([outcome(0, [1, 1, 0]), outcome(1, [0])])
    assert made.propose(1, 0)[0].predicted == 0.5


def test_beliefs_count_episodes_and_let_older_evidence_fade():
    made = DifficultyWindow(pool(2), GROUP, 0, decay=0.5)
    made.observe([outcome(0, [1, 1, 1, 0])])
    assert (made.alpha[0], made.beta[0]) == (4, 2)
    made.observe([outcome(0, [0, 0])])
    assert (made.alpha[0], made.beta[0]) == (1 + 0.5 * 3, 1 + 0.5 * 1 + 2)
    assert (made.alpha[1], made.beta[1]) == (1, 1)
    assert made.propose(2, 0, busy={1})[0].predicted == 2.5 / 6
    made.observe([Outcome(0, (), ())])
    assert made.mean[0] == (1 + 0.25 * 3) / (2 + 0.25 * 3 + 0.5 * 2.5)


def test_the_window_draws_inside_it_but_for_its_exploration():
    made = with_rates(DifficultyWindow(pool(4), GROUP, 0, low=0.2, high=0.8, explore=0.2), [0.1, 0.3, 0.7, 1])
    assert made.weights() == pytest.approx([0.05, 0.45, 0.45, 0.05])
    with_rates(made, [0.1, 0.1, 0.9, 1])
    assert made.weights() == pytest.approx([0.25] * 4)


def test_paced_weighs_by_the_kernel():
    assert pace(np.array([0, 0.25, 0.5, 1]), 1, 1) == pytest.approx([0, 0.1875, 0.25, 0])
    assert pace(np.array([0.2]), 2, 3) == pytest.approx([0.2**2 * 0.8**3])
    made = with_rates(Paced(pool(3), GROUP, 0), [0.5, 0.9, 1.0])
    drawn = np.bincount([places(made, 1, n)[0] for n in range(2000)], minlength=3) / 2000
    assert drawn == pytest.approx([0.25 / 0.34, 0.09 / 0.34, 0], abs=0.03)


def test_vade_fades_on_two_scales():
    made = VADE(pool(2), GROUP, 0, fast=0.5, slow=0.9)
    made.alpha[:], made.beta[:] = 5, 3
    made.observe([outcome(0, [1, 1, 1, 0])])
    # The slow scale first: 1 + 0.9 * 4 = 4.6 and 1 + 0.9 * 2 = 2.8 for both tasks.
    assert (made.alpha[1], made.beta[1]) == pytest.approx((4.6, 2.8))
    assert (made.alpha[0], made.beta[0]) == pytest.approx((1 + 0.5 * 3.6 + 3, 1 + 0.5 * 1.8 + 1))


def test_vade_prefers_a_success_rate_of_one_third():
    made = with_rates(VADE(pool(4), GROUP, 0), [0.02, 1 / 3, 0.6, 0.98])
    assert all(places(made, 2, n) == [1, 2] for n in range(20))
    # 0.02 * 0.98^2 = 0.019 and 0.98 * 0.02^2 = 0.0004
    assert all(places(made, 4, n)[2:] == [0, 3] for n in range(20))


def test_insight_prefers_what_is_less_known_among_equally_difficult_tasks():
    made = InSight(pool(3), GROUP, 0, eta=0.0)
    made.alpha, made.beta = np.array([1.0, 2.0, 8.0]), np.array([1.0, 2.0, 8.0])
    made.group_size = 1
    # Mutual information of one rollout: 0.193147, 0.109814 and 0.030275 nats.
    assert made.keys(made.rng(0)) == pytest.approx([0.193147, 0.109814, 0.030275], abs=1e-6)
    assert places(made, 3) == [0, 1, 2]


def test_insight_weighs_information_by_the_mean_belief():
    made = InSight(pool(2), 1, 0, mu=0.5, eta=4.0)
    made.alpha, made.beta = np.array([1.0, 2.0]), np.array([9.0, 2.0])
    # Information 0.042186 at a mean of 0.1, and 0.109814 at 0.5.
    assert made.keys(made.rng(0)) == pytest.approx([math.exp(-4 * 0.16) * 0.042186, 0.109814], abs=1e-6)


def test_gdro_raises_the_bins_that_keep_failing():
    made = GDRO(pool(4), GROUP, 0, ema=0.5, gamma=0.1, hysteresis=0.0)
    made.bins = np.array([1, 1, 8, 8])
    with_rates(made, [0.15, 0.15, 0.85, 0.85], weight=1e6)
    made.observe([outcome(0, [0, 0, 0, 1]), outcome(1, [0, 0, 0, 0]), outcome(2, [1, 1, 1, 0])])
    assert made.scores[[1, 8]] == pytest.approx([0.5 * 0.875, 0.5 * 0.25])
    weights = np.exp([0.4375, 0.125])
    q = 0.9 * weights / weights.sum() + 0.05
    assert made.bin_probabilities()[[1, 8]] == pytest.approx(q)
    assert made.bin_probabilities().sum() == pytest.approx(1)


def test_gdro_moves_a_task_out_of_its_bin_only_beyond_the_hysteresis():
    made = GDRO(pool(2), GROUP, 0, hysteresis=0.05, decay=1.0)
    made.bins = np.array([4, 4])
    made.alpha, made.beta = np.array([5.2, 6.2]), np.array([4.8, 3.8])
    made.observe([Outcome(0, (), ()), Outcome(1, (), ())])
    assert made.bins.tolist() == [4, 6]


def test_gdro_gives_rollouts_by_the_square_root_of_the_variance():
    made = GDRO(pool(2), 8, 0, rollouts="sqrt", min_rollouts=2, max_rollouts=16)
    with_rates(made, [0.5, 0.9])
    made.bins = np.array([5, 9])
    # q is even, the roots of the variances are 0.5 and 0.3: 8 * 0.5 / 0.4 = 10 and 8 * 0.3 / 0.4 = 6.
    assert made.bin_rollouts()[[5, 9]].tolist() == [10, 6]
    assert {p.place: p.rollouts for p in made.propose(2, 0)} == {0: 10, 1: 6}


def test_stages_follow_the_success_of_their_level():
    made = Staged(pool(4, [2, 2, 7, 7]), GROUP, 0, threshold=0.75, window=2, review=0.0)
    assert sorted(places(made, 2)) == [0, 1]
    made.observe([outcome(0, [1, 1]), outcome(2, [1, 1])])
    assert (made.stage, made.newest) == (0, [1.0])
    made.observe([outcome(1, [1, 0])])
    assert made.stage == 1
    assert sorted(places(made, 2, 2)) == [2, 3]
    made.observe([outcome(2, [1, 1]), outcome(3, [1, 1])])
    assert made.stage == 1
    made.review = 1.0
    assert set(places(made, 4, 4)) == {0, 1}


def test_a_task_without_a_level_is_refused():
    with pytest.raises(
        InputError, match=r"task 't0': curriculum 'staged' needs a whole number data\['level'\]"
    ):
        Staged([Task("t0", "gridworld")], GROUP, 0)


def test_ties_are_broken_at_random():
    rng = np.random.default_rng(0)
    first = [largest(np.zeros(4), 1, (), rng)[0] for _ in range(400)]
    assert np.bincount(first) / 400 == pytest.approx([0.25] * 4, abs=0.07)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "wade",
            {},
            r"curriculum.name: unknown name 'wade'; did you mean 'vade'\? Allowed: file_order, gdro",
        ),
        (
            "vade",
            {"slov": 1.0},
            r"curriculum.settings.slov: 'vade' has no such setting; did you mean 'slow'\?",
        ),
        ("vade", {"slow": "x"}, r"curriculum.settings.slow: input should be a valid number, got 'x'"),
        ("vade", {"slow": 1.5}, r"curriculum.settings.slow: must be from 0 to 1, got 1.5"),
        ("gdro", {"rollouts": "root"}, r"curriculum.settings.rollouts: input should be 'fixed' or 'sqrt'"),
        ("file_order", {"slow": 1.0}, r"curriculum.settings.slow: 'file_order' has no settings"),
        (
            "asyncrl.types:Task",
            {},
            r"curriculum.name: 'asyncrl.types:Task' is no asyncrl.extensions.curriculum",
        ),
    ],
)
def test_a_wrong_curriculum_is_refused_by_key(name, given, message):
    with pytest.raises(ConfigError, match=message):
        curricula.factory(name, given, GROUP, 0)


def test_a_curriculum_of_the_users_own_that_cannot_be_made_is_named(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text(
        "from asyncrl.extensions.curriculum.curriculum import Curriculum\n"
        "class Narrow(Curriculum):\n"
        "    def __init__(self, tasks):\n"
        "        super().__init__(tasks, 1, 0)\n"
    )
    make = curricula.factory(f"{path}:Narrow", {}, GROUP, 0)
    with pytest.raises(ConfigError, match=r"curriculum.name: '.*broken.py:Narrow': .*takes 2 positional"):
        make(pool(2))


def test_one_file_makes_a_curriculum(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from asyncrl.extensions.curriculum.curriculum import BeliefCurriculum\n"
        "class Hardest(BeliefCurriculum):\n"
        "    def __init__(self, tasks, group_size, seed, *, decay: float = 1.0):\n"
        "        super().__init__(tasks, group_size, seed, decay)\n"
        "    def keys(self, rng):\n"
        "        return -self.mean\n"
    )
    made = curricula.factory(f"{path}:Hardest", {"decay": 0.9}, GROUP, 0)(pool(3))
    made.observe([outcome(0, [1, 1]), outcome(2, [0, 0])])
    assert places(made, 3) == [2, 1, 0]


def embedded(*rows):
    return [Task(f"t{i}", "gridworld", i, data={"embedding": list(row)}) for i, row in enumerate(rows)]


def test_similarity_predicts_difficulty_by_attention_to_probed_tasks():
    tasks = embedded((1, 0), (0, 1), (0.6, 0.8))
    made = Similarity(tasks, GROUP, 0, references=2, tau_attention=1 / math.sqrt(2), tau=1.0, target=0.5)
    made.references = np.array([0, 1])
    made.attention = made.attend()
    made.observe([outcome(0, [1, 1, 1, 1]), outcome(1, [0, 0, 0, 1]), outcome(2, [0, 0, 0, 0])])
    # The dot products of task 2 are 0.6 and 0.8, and sqrt(2) tau_attention is 1.
    weight = 1 / (1 + math.exp(0.6 - 0.8))
    assert made.predicted[2] == pytest.approx(weight * 0.75)
    assert made.predicted[0] == pytest.approx(0.75 / (1 + math.e))
    made.tau = 1e-3
    near = int(np.abs(made.predicted - 0.5).argmin())
    assert places(made, 1, number=3) == [near]


def test_similarity_probes_its_references_first_and_then_in_turn():
    tasks = embedded(*[(math.cos(i), math.sin(i)) for i in range(20)])
    made = Similarity(tasks, GROUP, 0, references=5, probe_every=3)
    references = made.references.tolist()
    assert places(made, 5) == references
    later = [places(made, 3, number)[:1] for number in range(5, 20, 3)]
    assert later == [[place] for place in references]


def test_v0_infers_success_from_similar_tasks_and_forgets_with_versions():
    made = V0(embedded((1, 0), (1, 0), (0, 1)), GROUP, 0, width=1.0, decay=0.5)
    made.observe([outcome(0, [1, 1, 1, 0])])
    alpha, beta = made.belief()
    # The distance of task 2 is sqrt(2): exp(-2 / 2).
    assert alpha == pytest.approx([4, 4, 1 + 3 / math.e])
    assert beta == pytest.approx([2, 2, 1 + 1 / math.e])
    made.observe([])
    assert made.belief()[0] == pytest.approx([2.5, 2.5, 1 + 1.5 / math.e])
    assert made.propose(1, 0)[0].predicted is not None


def test_v0_keeps_the_newest_outcomes_and_prefers_the_uncertain():
    made = V0(embedded((1, 0), (0, 1), (-1, 0)), GROUP, 0, history=2, width=0.1, explore=0.0)
    made.observe([outcome(1, [1, 1]), outcome(0, [1, 1, 1, 1]), outcome(1, [0, 0, 0, 0])])
    assert [row[0] for row in made.newest] == [0.0, 1.0]
    assert places(made, 1) == [2]


def test_tasks_are_compared_by_their_words_or_their_own_vectors():
    words = [{"q": "add 3 and 4"}, {"q": "add 3 and 5"}, {"q": "sail the boat"}]
    first, second, other = embed([Task(f"t{i}", "e", data=data) for i, data in enumerate(words)])
    assert first @ second > 0.7 > 0.5 > first @ other
    assert np.linalg.norm(first) == pytest.approx(1)
    assert embed(embedded((3, 4)))[0] == pytest.approx([0.6, 0.8])
    for data, message in (
        ({}, "task 't': this curriculum compares tasks by their data, and this one has none"),
        ({"embedding": ["x"]}, r"task 't': data\['embedding'\] must be a list of finite numbers"),
    ):
        with pytest.raises(InputError, match=message):
            embed([Task("t", "e", data=data)])
    with pytest.raises(InputError, match=r"must have one size in all tasks, got \[2, 3\]"):
        embed(embedded((1, 0), (1, 0, 0)))


def test_xrpo_gives_rollouts_where_they_narrow_the_interval_most():
    # t(0.975) of 1, 2 and 3 degrees of freedom is 12.7062, 4.3027 and 3.1824.
    expected = 0.5 * np.array([12.7062 / math.sqrt(2), 4.3027 / math.sqrt(3), 3.1824 / 2])
    assert half_width(np.full(3, 0.5), np.array([2.0, 3.0, 4.0])) == pytest.approx(expected, abs=1e-3)
    bonus = 0.1 * np.sqrt(math.log(6) / np.array([2, 3]))
    found = priorities(np.array([0.5, 0.5]), np.array([2.0, 3.0]), 0.1)
    assert found == pytest.approx(expected[:2] - expected[1:] + bonus, abs=1e-3)
    # An even, unknown task gets more than a nearly solved one, and both more than one that is well known.
    unknown, solved, known = allocate(np.array([0.5, 0.95, 0.5]), np.array([0.0, 0, 40]), 24, (2, 16), 0.0)
    assert unknown > solved > known == 2
    assert unknown + solved + known == 24
    assert allocate(np.full(2, 0.5), np.zeros(2), 100, (2, 5), 0.0) == [5, 5]


def test_xrpo_spends_the_group_size_on_average():
    made = XRPO(pool(6), 8, 0)
    made.observe([outcome(0, [1] * 8), outcome(1, [1, 0] * 4), outcome(2, [0] * 8)])
    proposed = {p.place: p.rollouts for p in made.propose(6, 0)}
    assert sum(proposed.values()) == 48
    assert proposed[0] < proposed[1] < proposed[3]
