"""`asyncrl env` lists, checks and plays; the check fails on environments that deserve it."""

import os
import random
from typing import ClassVar

import pytest

from asyncrl.cli import main
from asyncrl.env.protocol import Action, Env, Step, ToolCall
from asyncrl.env.scripted import nonsense, what_is_malformed
from asyncrl.envs.tools import schema
from asyncrl.extensions.env_tools import check
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.extensions.env_tools.commands import read_action

HERE = __name__


class Leaky(Env):
    """Its oracle loses, its problems change, and its sessions share a counter."""

    blocking = False
    max_turns = 2
    shared = 0

    def reset(self):
        return [{"role": "user", "content": str(random.random())}]

    def step(self, action):
        Leaky.shared += 1
        return Step(reward=(Leaky.shared % 7) / 10, done=True)

    def oracle(self, messages):
        return {"role": "assistant", "content": "x"}

    random_policy = lambda self, messages, rng: self.oracle(messages)  # noqa: E731


class Telltale(Env):
    """Shows its answer in the first observation, and has the same problems in both splits."""

    blocking = False
    levels = (1, 2)

    def __init__(self, task, level=1):
        super().__init__(task)
        self.level = level

    def reset(self):
        return [{"role": "user", "content": "What is the password? (It is swordfish.)"}]

    def step(self, action):
        return Step(reward=float(action.content == "swordfish" and self.level == 1), done=True)

    def oracle(self, messages):
        return {"role": "assistant", "content": "swordfish"}

    def random_policy(self, messages, rng):
        return {"role": "assistant", "content": "herring"}

    def problem_key(self):
        return "password"

    def secrets(self):
        return ("swordfish",)


class Broken(Telltale):
    """Raises in every step."""

    def step(self, action):
        raise RuntimeError("the server is on fire")


class Clumsy(Telltale):
    """Takes every call for its own tool's, says nothing in a way, and keeps a file open each time."""

    tools = (schema("guess", "Guess.", word="string"),)
    levels = ()
    held: ClassVar[list] = []

    def __init__(self, task):
        super().__init__(task)
        Clumsy.held.append(open(os.devnull))  # noqa: SIM115
        self.turns = 0

    def step(self, action):
        self.turns += 1
        word = action.tool_calls[0].arguments["word"] if action.tool_calls else action.content
        said = None if word == "herring" else "no"
        return Step(
            [{"role": "user", "content": said}], reward=float(word == "swordfish"), done=self.turns == 2
        )

    def secrets(self):
        return ()

    def problem_key(self):
        return str(self.task.seed)


@pytest.mark.parametrize("name", ["gridworld", "calculator"])
def test_our_environments_pass_every_check(name):
    assert [f for f in check_env(name) if not f.ok] == []


def test_a_bad_environment_fails_the_checks_it_should():
    failed = {f.name for f in check_env(f"{HERE}:Leaky") if not f.ok}
    assert {"a seed gives one problem", "oracle scores", "sessions do not touch each other"} <= failed


def test_a_shown_secret_equal_problems_and_a_level_the_oracle_fails_are_found():
    findings = {f.name: f for f in check_env(f"{HERE}:Telltale", num_tasks=5)}
    assert [name for name, f in findings.items() if not f.ok] == [
        "splits are disjoint",
        "oracle scores",
        "observations keep the answer secret",
    ]
    assert "such as 'swordfish'" in findings["observations keep the answer secret"].seen
    assert "0.000 on level 2" in findings["oracle scores"].seen


def test_unanswered_mistakes_malformed_messages_and_leaks_are_found():
    findings = {f.name: f for f in check_env(f"{HERE}:Clumsy", num_tasks=6)}
    for file in Clumsy.held:
        file.close()
    assert "KeyError: 'word'" in findings["mistakes are answered"].seen
    assert "content must be a text or a list of parts, got None" in findings["messages are well formed"].seen
    assert "+6 descriptors" in findings["sessions leave nothing behind"].seen
    failed = {name for name, f in findings.items() if not f.ok}
    assert {"mistakes are answered", "messages are well formed", "sessions leave nothing behind"} <= failed


def test_an_environment_whose_episodes_fail_is_told_and_the_next_one_checked(capsys):
    assert main(["env", "check", f"{HERE}:Broken", "gridworld", "--tasks", "2"]) == 1
    broken, _, gridworld = capsys.readouterr().out.partition("\ngridworld\n")
    assert "FAILED  episodes can be played: EnvironmentFailure:" in broken
    assert "the server is on fire" in broken
    assert "oracle scores: mean reward 1.000" in gridworld


def test_nonsense_holds_every_kind_of_mistake_with_every_tool():
    tools = [schema("look", "Look."), schema("add", "Add.", a="integer", b="integer")]
    actions = dict(nonsense(tools))
    assert {"an empty answer", "a malformed call", "an unknown tool", "look with an unknown argument"} <= set(
        actions
    )
    assert actions["add with -1"].tool_calls[0].arguments == {"a": -1, "b": -1}
    assert not any(name.startswith("look with None") for name in actions)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({"role": "assistant", "content": "x"}, "role must be one of system, user, tool"),
        ({"role": "tool", "content": 3}, "content must be a text or a list of parts, got 3"),
        ({"role": "tool", "content": "x", "extra": {1, 2}}, "not JSON serializable"),
        ({"role": "tool", "content": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_a_message_that_cannot_be_shown_is_told(message, why):
    assert why in what_is_malformed(message)
    assert what_is_malformed({"role": "tool", "content": "x"}) == ""


def test_a_slow_environment_is_checked_on_fewer_tasks(monkeypatch):
    monkeypatch.setattr(check, "BUDGET_S", 0.0)
    findings = {f.name: f for f in check_env("gridworld")}
    assert findings["a seed gives one problem"].seen == "5 of 5 went alike twice"


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("hello there", Action("hello there")),
        ("look", Action("", (ToolCall("call-0", "look", {}),))),
        ("run print(1, 2)", Action("", (ToolCall("call-0", "run", {"code": "print(1, 2)"}),))),
        ('run {"code": "x"}', Action("", (ToolCall("call-0", "run", {"code": "x"}),))),
        ('add {"a": 1, "b": 2}', Action("", (ToolCall("call-0", "add", {"a": 1, "b": 2}),))),
        ("add 1 2", Action("", (), ("add takes a JSON object with a, b",))),
        ("look around", Action("", (), ("look takes a JSON object with nothing",))),
    ],
)
def test_a_line_that_begins_with_a_tool_is_a_call(line, action):
    tools = [
        schema("look", "Look."),
        schema("run", "Run.", code="string"),
        schema("add", "Add.", a="integer", b="integer"),
    ]
    assert read_action(line, tools) == action


def test_a_tool_environment_is_played_by_calls(capsys, monkeypatch):
    answers = iter(["schema", "query SELECT 6 * 7 AS n", "```", "nothing", "```"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    assert main(["env", "play", "sql", "--config", '{"level": 2}']) == 0
    shown = capsys.readouterr().out
    assert "[tool] {" in shown and "CREATE TABLE customers" in shown and "[tool] n\n42" in shown
    assert "done: reward 0, success False" in shown


def test_the_command_lists_checks_and_plays(capsys, monkeypatch):
    assert main(["env", "list"]) == 0
    assert "gridworld" in capsys.readouterr().out
    assert main(["env", "check", "gridworld"]) == 0
    assert "oracle scores: mean reward 1.000" in capsys.readouterr().out
    assert main(["env", "check", f"{HERE}:Leaky"]) == 1
    answers = iter(["north"] * 20)
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    assert main(["env", "play", "gridworld", "--seed", "3"]) == 0
    assert "done: reward" in capsys.readouterr().out
