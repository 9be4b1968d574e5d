"""Office: what tools do, what changes by itself, what the final state is held against."""

import asyncio
import random

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.office.data import make
from asyncrl.envs.office.env import Office
from asyncrl.envs.office.services import TOOLS, Services
from asyncrl.envs.office.world import Mail, World, furnish
from asyncrl.envs.tools import ToolError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task


def make_env(seed=0, **config):
    return Office(Task("t", "office", seed), **config)


def find(words):
    """An environment whose instruction holds some words."""
    return next(env for env in (make_env(seed, level=3) for seed in range(200)) if words in env.problem.text)


def step(env, *calls):
    tool_calls = tuple(ToolCall(f"call-{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    return asyncio.run(env.step(Action("" if calls else "done", tool_calls)))


def play(env):
    messages = env.reset()
    while True:
        message = env.oracle(messages)
        answer = asyncio.run(env.step(to_action(message)))
        if answer.done:
            return answer
        messages += [message, *answer.messages]


@pytest.fixture
def office():
    world = World(
        files={"a.txt": "one"},
        inbox=[Mail("ada", "hello", "how are you")],
        meetings={"Review": ("Mon", 9)},
        pages={"ada desk": "ada: room 1, phone 22"},
        sheets={"trips": {"A1": "what"}},
    )
    return Services(world)


def test_every_tool_reads_or_writes_the_one_state(office):
    assert office.list_files() == "a.txt"
    assert (office.write_file("b.txt", "two"), office.read_file("b.txt")) == ("written", "two")
    assert (office.delete_file("a.txt"), office.list_files()) == ("deleted", "b.txt")
    assert (office.inbox(), office.read_mail(1)) == ("1 ada: hello", "how are you")
    assert office.send_mail("ben", "s", "t") == "sent" and office.world.sent == [Mail("ben", "s", "t")]
    assert office.meetings("Mon") == "9 Review"
    assert office.move("Review", "Tue", 10) == "moved" and office.meetings("Mon") == "(none)"
    assert office.book("Sales", "Tue", 9) == "booked" and office.meetings("Tue") == "9 Sales\n10 Review"
    assert office.cancel("Sales") == "cancelled" and "Sales" not in office.world.meetings
    assert (office.search("Ada phone"), office.page("ada desk")) == ("ada desk", "ada: room 1, phone 22")
    assert office.set_cell("trips", "B2", "7") == "set" and office.read_sheet("trips") == "A1 what\nB2 7"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.read_file("z"), "no file 'z'"),
        (lambda o: o.write_file("../z", ""), "a path is a plain file name"),
        (lambda o: o.write_file("z", "x" * 2001), "at most 2000 characters"),
        (lambda o: o.read_mail(2), "no mail 2"),
        (lambda o: o.book("Review", "Tue", 9), "already"),
        (lambda o: o.book("Sales", "Mon", 9), "Mon 9 is taken by Review"),
        (lambda o: o.move("Sales", "Mon", 10), "no meeting 'Sales'"),
        (lambda o: o.meetings("Sun"), "no day 'Sun'; days are Mon, Tue"),
        (lambda o: o.book("Sales", "Mon", 17), "hours are 9 to 16"),
        (lambda o: o.page("z"), "no page 'z'"),
        (lambda o: o.set_cell("z", "A1", ""), "no sheet 'z'"),
        (lambda o: o.set_cell("trips", "1A", ""), "no cell '1A'"),
    ],
)
def test_what_cannot_be_done_is_said(office, call, message):
    with pytest.raises(ToolError, match=message):
        call(office)


def test_every_tool_offered_has_a_handler():
    offered = {tool["function"]["name"] for tools in TOOLS.values() for tool in tools}
    assert set(Services(World()).handlers()) == offered


def test_the_final_state_decides():
    env = make_env(2)
    assert env.problem.text == "Set cell B5 of sheet hours to 46."
    cell = ("set_cell", {"name": "hours", "cell": "B5", "value": "46"})
    assert not step(env, cell).done
    assert (step(env).reward, env.turns) == (1.0, 2)
    for extra in (
        ("write_file", {"path": "x", "text": ""}),
        ("send_mail", {"to": "ada", "subject": "", "text": ""}),
    ):
        env = make_env(2)
        step(env, cell, extra)
        last = step(env)
        assert (last.reward, last.success) == (0.0, False)
    assert step(make_env(2)).reward == 0.0


def test_a_detour_that_is_undone_does_not_matter():
    env = make_env(2)
    step(
        env,
        ("write_file", {"path": "x", "text": ""}),
        ("set_cell", {"name": "hours", "cell": "B5", "value": "4"}),
    )
    step(env, ("delete_file", {"path": "x"}), ("set_cell", {"name": "hours", "cell": "B5", "value": "46"}))
    assert step(env).reward == 1.0


def test_a_mail_arrives_while_the_agent_looks_and_not_before():
    env = find("'minutes' arrives")
    turn = next(drift.turn for goal in env.problem.goals for drift in goal.drifts)
    seen = [step(env, ("inbox", {})).messages[0]["content"] for _ in range(turn + 1)]
    assert ["minutes" in text for text in seen] == [False] * turn + [True]


def test_who_books_before_the_others_have_moved_is_wrong():
    env = find("first free hour")
    day = env.problem.goals[0].looks[0][1]["day"]
    hour = env.world.first_free(day)
    assert (
        step(env, ("book", {"title": "Planning", "day": day, "hour": hour})).messages[0]["content"]
        == "booked"
    )
    both = step(env, ("meetings", {"day": day})).messages[0]["content"].splitlines()
    assert len([line for line in both if line.startswith(f"{hour} ")]) == 2
    free = env.world.first_free(day)
    step(env, ("move", {"title": "Planning", "day": day, "hour": free}))
    assert step(env).reward == 1.0


def test_what_changes_follows_from_the_seed():
    def history():
        env = make_env(5, level=4)
        seen = []
        for _ in range(4):
            step(env, ("inbox", {}))
            seen.append(env.world.snapshot())
        return seen

    first = history()
    assert first == history()
    assert first[0] != first[-1]


def test_work_done_at_any_time_gives_the_expected_state():
    # The expert waits; here everything that needs no waiting is done in the first turn.
    for seed in range(60):
        env = make_env(seed, level=2)
        step(env, *env.problem.goals[0].acts(env.world))
        assert step(env).reward == 1.0


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_expert_always_succeeds(level):
    assert {play(make_env(seed, level=level)).reward for seed in range(100)} == {1.0}


def test_goals_of_the_last_level_share_no_service():
    several = 0
    for seed in range(40):
        problem = make(random.Random(seed), 4, frozenset(TOOLS))
        several += len(problem.goals) > 1
        assert 1 <= len(problem.goals) <= 3
    assert several > 30


def test_only_tools_of_the_chosen_services_are_offered():
    env = make_env(services=["sheets"])
    assert [tool["function"]["name"] for tool in env.tools] == ["read_sheet", "set_cell"]
    assert env.problem.text.startswith("Set cell")
    assert step(env, ("inbox", {})).messages[0]["content"].startswith("error: no tool 'inbox'")
    with pytest.raises(ValueError, match="services: no task of level 3 needs only sheets"):
        make_env(level=3, services=["sheets"])
    with pytest.raises(ValueError, match=r"services: must be among files, mail, .*, got 'fax'"):
        make_env(services=["fax"])


def test_two_offices_are_furnished_apart():
    first, second = furnish(random.Random(1)), furnish(random.Random(1))
    first.sheets["trips"]["A1"] = "changed"
    assert second.sheets["trips"]["A1"] == "what"


def test_office_passes_every_check():
    assert [f for f in check_env("office") if not f.ok] == []
