"""Environments of tinker-cookbook, its own recipes among them, played in a Python of their own."""

import asyncio
import itertools
import re

import pytest

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action, ToolCall
from asyncrl.errors import ConfigError, EnvironmentFailure, InfrastructureError
from asyncrl.extensions.env_adapters.cookbook import TinkerCookbook, helper_of
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.benchmark_env import benchmark_python
from tests.extensions.tinker.test_sdk import PACKAGES

pytestmark = pytest.mark.slow
GUESSING = "tinker_cookbook.recipes.multiplayer_rl.guess_number.env:GuessNumberDatasetBuilder"
ARITHMETIC = "tinker_cookbook.recipes.math_rl.arithmetic_env:ArithmeticDatasetBuilder"
SPELLING = "ck_words.py:SpellingBuilder"


@pytest.fixture(scope="module")
def python(pytestconfig):
    found = benchmark_python(pytestconfig.cache.mkdir("tinker"), PACKAGES, dependencies=False)
    with pytest.MonkeyPatch.context() as patch:
        # Data sets are found in the folder asyncrl is started in.
        patch.chdir(pytestconfig.rootpath / "tests/extensions/env_adapters")
        # On a loaded machine its imports take longer than an episode may to start.
        helper_of(found).ask({"address": True}, 600)
        yield found
        helper_of(found).close()


def play(python, dataset, *turns, row=0, split="train", **config):
    """Play turns through a host; return the session and its steps."""

    async def episode():
        host = EnvHost()
        try:
            task = Task("t", "tinker_cookbook", row, split, {"row": row})
            opened = await host.open(task, {"dataset": dataset, "python": python, **config})
            steps = []
            for i, turn in enumerate(turns):
                action = turn if isinstance(turn, Action) else Action(turn)
                steps.append(await host.step(opened.id, i, action, 60))
            return opened, steps
        finally:
            await host.close_all()

    return asyncio.run(asyncio.wait_for(episode(), 240))


def call(name, **arguments):
    return Action("", (ToolCall("call00000", name, arguments),))


def rows(python, split, dataset=SPELLING, **args):
    tasks = TinkerCookbook.tasks(split, "tinker_cookbook", dataset=dataset, python=python, args=args)
    return [task.data["row"] for task in itertools.islice(tasks, 4)]


def test_a_problem_is_asked_answered_and_scored_by_its_checks(python):
    opened, (right,) = play(python, SPELLING, "c-a-t")
    assert opened.messages == [
        {"role": "system", "content": "Spell."},
        {"role": "user", "content": "Spell cat."},
    ]
    assert (right.done, right.reward, right.success, right.truncated) == (True, 1.0, True, False)
    assert right.components == {"format": 1.0, "correct": 1.0}
    _, (wrong,) = play(python, SPELLING, "owl", split="heldout")
    assert (wrong.reward, wrong.success, wrong.components["format"]) == (-0.1, False, 0.0)


def test_tasks_are_the_groups_of_both_data_sets_or_every_other_one_of_the_only_one(python):
    assert (rows(python, "train"), rows(python, "heldout")) == ([0, 1, 2, 3], [0, 1])
    assert rows(python, "train", held_out=False) == [0, 2, 4]
    assert rows(python, "heldout", held_out=False) == [1, 3, 5]
    assert rows(python, "heldout", "ck_words.py:Groups") == [1, 3, 5, 7]


def test_tools_are_offered_by_the_models_template_called_and_malformed_calls_given_to_the_environment(python):
    opened, steps = play(
        python, "ck_words:Groups", call("double", n=4), Action("", parse_errors=("not JSON",)), "8", row=1
    )
    assert opened.messages[0] == {"role": "system", "content": "Use tools."}
    assert [tool["function"]["name"] for tool in opened.opened.tools] == ["double"]
    assert steps[0].messages == [
        {"role": "tool", "content": 'got {"n": 4}', "tool_call_id": "call00000", "name": "double"}
    ]
    assert [m["content"] for m in steps[1].messages] == ["broken: not JSON"]
    # The group, which has this episode only, takes a tenth for each turn.
    assert (steps[2].done, steps[2].reward) == (True, pytest.approx(0.7))
    assert steps[2].components == {"turns": 1.0, "closed_before": 0.0}
    _, (again,) = play(python, "ck_words:Groups", "8", row=1)
    assert again.components["closed_before"] == 1.0


def test_a_prompt_that_does_not_go_on_is_a_conversation_of_its_own_with_the_whole_reward(python):
    opened, (first, last) = play(python, "ck_words:corridor", "go", "wait", row=1)
    assert opened.messages == [{"role": "user", "content": "You are at 1."}]
    assert (first.agent, first.messages[0]["content"], first.reward) == ("prompt/2", "You are at 2.", -0.25)
    assert (last.done, last.truncated, last.components) == (True, True, {"stop/max_turns": 1.0})
    # Both conversations earn 0.75: this one without what the first has already, that one with the rest.
    assert (last.reward, last.rewards) == (0.75, {"": 1.0})


def test_recipes_of_the_cookbook_are_played_unchanged(python):
    sizes = {"batch_size": 2, "train_group_size": 1, "test_group_size": 1}
    opened, (low, wrong) = play(python, GUESSING, "Guess: 0", "no", args=sizes, max_turns=10)
    assert opened.messages[0]["content"].startswith("Your job is to guess a integer between 0 and 1024.")
    assert [m["content"] for m in low.messages] == ["Too low"]
    assert wrong.messages[0]["content"].startswith("Failed to parse.")
    assert (low.agent, wrong.agent, wrong.reward) == (None, None, -1.0)
    opened, (step,) = play(python, ARITHMETIC, "?", args={"batch_size": 1, "n_batches": 2, "group_size": 1})
    assert re.search(r"What is \d+ \+ \d+\?", opened.messages[-1]["content"])
    assert (step.done, step.success, step.components["correct"]) == (True, False, 0.0)


def test_the_check_runs_as_far_as_it_can(python):
    findings = check_env("tinker_cookbook", {"dataset": SPELLING, "python": python}, 2)
    assert [f for f in findings if not f.ok] == []


@pytest.mark.parametrize(
    ("dataset", "config", "problem"),
    [
        (SPELLING, {"args": {"group_size": 4}}, "its group makes 4 environments"),
        (SPELLING, {"args": {"renderer_name": "role_colon"}}, "by another renderer"),
        (SPELLING, {"row": 77}, "no row 77, only 6"),
        ("ck_words:corridor", {"args": {"kind": "tokens"}}, "writes its prompt in tokens"),
        ("ck_words:corridor", {"args": {"kind": "stop"}}, "ends turns at"),
        ("ck_words:corridor", {"args": {"kind": "image"}}, "messages with image are not supported"),
        ("ck_words:corridor", {"args": {"kind": "role"}}, "role 'game' of a message"),
    ],
)
def test_what_cannot_be_played_is_refused_with_the_reason(python, dataset, config, problem):
    with pytest.raises(EnvironmentFailure, match=re.escape(problem)):
        play(python, dataset, **config)


def test_what_the_environment_raises_is_its_failure(python):
    with pytest.raises(EnvironmentFailure, match="RuntimeError: the corridor is gone"):
        play(python, "ck_words:corridor", "boom")


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        ("ck_words:nothing", "makes a str; an RLDatasetBuilder or an RLDataset is needed"),
        ("ck_words:no_such", "has no attribute 'no_such'"),
        ("no_such_module:it", "No module named 'no_such_module'"),
    ],
)
def test_what_is_no_data_set_is_refused_before_anything_is_played(python, dataset, problem):
    with pytest.raises(ConfigError, match=re.escape(problem)):
        rows(python, "train", dataset)


def test_settings_that_are_missing_and_a_python_without_the_package_are_named():
    with pytest.raises(InfrastructureError, match="tinker-cookbook did not start in /no/such/python"):
        rows("/no/such/python", "train")
    with pytest.raises(ConfigError, match=r"env\.config\.python: environment 'tinker_cookbook' needs it"):
        rows("", "train")
