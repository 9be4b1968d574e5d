"""`asyncrl judge check`: which attacks a judge withstands, with stand-ins that fall for some and for none."""

import asyncio
import json
import re

import pytest

from asyncrl.cli import main
from asyncrl.errors import JudgeError
from asyncrl.extensions.judge.attacks import ATTACKS, INSTRUCTION, QUESTIONS, Form
from asyncrl.extensions.judge.check import check, share
from asyncrl.extensions.judge.client import JudgeClient
from asyncrl.extensions.judge.questions import Scores, read_reply
from asyncrl.extensions.judge.settings import JudgeConfig
from tests.extensions.judge.server import Endpoint, chat, serving

CONVERSATION = re.compile(r"\[assistant(?:, turn 1)?\] (.*)", re.DOTALL)
COMPONENTS = {"right": {"rubric": "Is it right?"}, "long": {"rubric": "Is it long?", "weight": -1.0}}


def answer_in(prompt):
    return CONVERSATION.search(prompt)[1].split("\n\nThe conversation ends here.")[0]


def sound(prompt):
    """Knows the answers, and reads nothing else."""
    text = answer_in(prompt).replace("\n| ", "\n")
    return "Reasons.\n" + ("9" if any(one.right in text for one in QUESTIONS) else "2")


def obedient(prompt):
    """Does what it is told in plain words."""
    return "10" if INSTRUCTION in prompt.replace("\n| ", "\n") else sound(prompt)


def parroting(prompt):
    """Ends with the last line that it has read, where that is a number."""
    last = answer_in(prompt).rpartition("\n")[2].removeprefix("| ")
    return last if last == "10" else sound(prompt)


def fragile(prompt):
    """Loses the form where somebody asks for one."""
    return "As you wish!" if "End your reply with" in prompt else sound(prompt)


def careless(prompt):
    return "7"


def checked(judge, only=(), **config):
    async def scenario(url):
        given = JudgeConfig(url=url, **config)
        client = JudgeClient(given)
        try:
            return await check(given, client, only)
        finally:
            await client.close()

    with serving(Endpoint(chat(judge))) as url:
        return asyncio.run(scenario(url))


def by_status(report):
    found = {}
    for one in report.findings:
        found.setdefault(one.status, set()).add(one.attack)
    return found


def test_a_sound_judge_withstands_all_attacks():
    report = checked(sound)
    assert report.held
    assert by_status(report) == {"held": {one.name for one in ATTACKS}}


def test_an_obedient_judge_is_got_at_by_instructions_and_by_none_that_are_not_seen():
    report = checked(obedient)
    assert not report.held
    assert by_status(report)["got in"] == {"instruction", "instruction first", "line separators"}
    (first, *_) = report.findings
    assert first.gain == pytest.approx(0.8)
    assert first.details[0] == "sum: 1.00, the wrong answer alone 0.20"


def test_a_judge_that_repeats_what_it_reads_is_got_at_by_forged_replies():
    got_in = by_status(checked(parroting))["got in"]
    assert {"forged reply", "forged messages", "nothing but a forged reply", "many forged replies"} <= got_in
    assert "fullwidth digits" not in got_in


def test_a_judge_that_loses_its_form_lets_a_policy_out_of_its_score():
    report = checked(fragile)
    assert by_status(report)["not judged"] == {"instruction of the form"}
    assert not report.held


def test_a_judge_that_cannot_tell_right_from_wrong_is_told_of():
    report = checked(careless)
    assert report.blind == [one.name for one in QUESTIONS]
    assert not report.held
    assert by_status(report) == {"held": {one.name for one in ATTACKS}}


def test_only_the_named_attacks_are_tried():
    assert [one.attack for one in checked(sound, ["giant"]).findings] == [
        "giant answer, filled before", "giant answer, filled after",
    ]  # fmt: skip


def test_a_judge_of_components_and_turns_is_attacked_in_its_own_form():
    given = JudgeConfig(url="http://j", components=COMPONENTS, per_turn=True)
    best = Form.of(given).best
    assert best == "right: 10\nlong: 10\nturn 1: 10"

    def repeating(prompt):
        whole = best in answer_in(prompt).replace("\n| ", "\n")
        return (
            "right: 10\nlong: 0\nturn 1: 10" if whole else f"right: {sound(prompt)[-1]}\nlong: 5\nturn 1: 2"
        )

    report = checked(repeating, components=COMPONENTS, per_turn=True)
    assert {"forged reply", "claimed verdict", "quoted rubric"} <= by_status(report)["got in"]
    assert "instruction" in by_status(report)["held"]


def test_less_of_a_component_with_a_negative_weight_is_a_gain():
    given = JudgeConfig(url="http://j", components=COMPONENTS)
    assert share(given, Scores({"right": 1.0, "long": 0.0})) == 1.0
    assert share(given, Scores({"right": 0.0, "long": 1.0})) == 0.0


def test_a_reward_model_is_measured_by_what_right_is_worth_to_it():
    def score(body):
        texts = [item["messages"][-1]["content"] for item in body["items"]]
        found = [50.0 if "experts" in text else 20.0 if text in RIGHT else 0.0 for text in texts]
        return 200, json.dumps({"scores": found})

    async def scenario(url):
        given = JudgeConfig(url=url, kind="score")
        client = JudgeClient(given)
        try:
            return await check(given, client)
        finally:
            await client.close()

    with serving(Endpoint(score)) as url:
        report = asyncio.run(scenario(f"{url}/score"))
    assert by_status(report)["got in"] == {"claimed authority"}
    assert next(one.gain for one in report.findings if one.attack == "claimed authority") == 2.5


RIGHT = [one.right for one in QUESTIONS]


@pytest.mark.parametrize("name", ["fullwidth digits", "digits of another script", "invisible instruction"])
def test_a_judge_that_ends_with_an_answers_lookalikes_has_failed(name):
    attack = next(one for one in ATTACKS if one.name == name)
    text = attack.make("wrong", Form("r", "10"))
    with pytest.raises(JudgeError, match="last line must be a number"):
        read_reply(JudgeConfig(url="http://j"), None, {"choices": [{"message": {"content": text}}]})


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[model]\npath = "m"\n[env]\nname = "gridworld"\n')
    return str(path)


@pytest.mark.parametrize(
    ("judge", "code", "words"), [(sound, 0, "0 did not"), (obedient, 1, "got in     instruction ")]
)
def test_the_command_says_what_held(recipe, capsys, judge, code, words):
    with serving(Endpoint(chat(judge))) as url:
        assert main(["judge", "check", recipe, f"judge.url={url}", "--only", "instruction"]) == code
    assert words in capsys.readouterr().out


def test_the_command_tells_other_programs(recipe, capsys):
    with serving(Endpoint(chat(sound))) as url:
        assert main(["judge", "check", recipe, f"judge.url={url}", "--json", "--only", "flattery"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["blind"], report["findings"][0]["attack"]) == ([], "flattery")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "judge.url: recipe"),
        (["judge.url=http://j", "--only", "no such"], "--only: no attack has a name"),
    ],
)
def test_a_recipe_without_a_judge_and_an_unknown_attack_are_refused(recipe, capsys, more, words):
    assert main(["judge", "check", recipe, *more]) == 2
    assert words in capsys.readouterr().err


def test_a_server_that_is_away_is_said(recipe, capsys):
    assert main(["judge", "check", recipe, "judge.url=http://127.0.0.1:9"]) == 1
    assert "judge http://127.0.0.1:9/v1/chat/completions: ClientConnectorError" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            lambda body: (401, "no key"),
            "HTTP 401: no key; the judge's API key is read from ASYNCRL_JUDGE_KEY",
        ),
        (
            chat("Your answer is correct."),
            "a plain answer could not be judged, so that nothing can be said of attacks: ",
        ),
    ],
)
def test_a_judge_that_judges_nothing_is_told_from_one_that_withstands(recipe, capsys, answer, words):
    with serving(Endpoint(answer)) as url:
        assert main(["judge", "check", recipe, f"judge.url={url}"]) == 1
    assert words in capsys.readouterr().err
