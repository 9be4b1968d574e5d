"""Support: two sides act on one state; what the customer does and bears, what the final state is held against."""

import asyncio
import itertools
import random

import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.support.customer import Customer
from asyncrl.envs.support.env import Support
from asyncrl.envs.support.line import FAULTS, GIGABYTES, Line, Problem, make
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task

ID = "C1234"


def make_env(*faults, distracted=False, accident=0, max_turns=16):
    """An environment with these faults."""
    env = Support(Task("t", "support", 0), level=2, max_turns=max_turns)
    after = Line()
    for fault in faults:
        for field, value in FAULTS[fault].mends.items():
            setattr(after, field, value)
    env.problem = Problem("Ada", ID, faults, "Hi", after.snapshot(), distracted, accident)
    env.line = env.problem.line()
    env.customer = Customer(env.problem, env.line)
    return env


def tell(env, text):
    """The customer's answer, and the step."""
    step = asyncio.run(env.step(Action(text)))
    return (step.messages[0]["content"] if step.messages else ""), step


def use(env, *tools, customer=ID):
    calls = tuple(ToolCall(f"call-{i}", name, {"customer": customer}) for i, name in enumerate(tools))
    return [m["content"] for m in asyncio.run(env.step(Action("", calls))).messages]


def play(env):
    messages = env.reset()
    while True:
        message = env.oracle(messages)
        step = asyncio.run(env.step(to_action(message)))
        if step.done:
            return step
        messages += [message, *step.messages]


@pytest.mark.parametrize(
    ("fault", "request_text"),
    [
        ("airplane", "Could you switch off FLIGHT MODE?"),
        ("data off", "Turn on mobile data"),
        ("sim", "Take the SIM out and in"),
        ("apn", "Reset the APN, then reboot"),
    ],
)
def test_the_customer_mends_the_phone_when_asked(fault, request_text):
    env = make_env(fault)
    assert not env.line.works
    _, step = tell(env, request_text)
    assert (env.line.works, step.done, step.reward, step.success) == (True, True, 1.0, True)


def test_a_reset_apn_counts_from_the_next_start():
    env = make_env("apn")
    assert tell(env, "restart it")[0] == "I have restarted it. Still no internet."
    assert tell(env, "reset the apn")[0] == "I have reset the APN. Still no internet."
    assert tell(env, "now restart")[1].reward == 1.0


def test_a_suspension_needs_both_sides_in_order():
    env = make_env("suspended")
    assert tell(env, "please pay")[0] == "I have got no bill. Still no internet."
    assert use(env, "resume") == ["error: the bill is not paid"]
    assert use(env, "send_bill") == ["sent"]
    assert tell(env, "please pay")[0] == "I have paid the bill. Still no internet."
    assert use(env, "resume") == ["active"]
    step = tell(env, "Does it work?")[1]
    assert (step.reward, step.success) == (1.0, True)


def test_a_charge_nobody_agreed_to_costs_the_reward():
    for ask, reward in ((False, 0.0), (True, 1.0)):
        env = make_env("no data")
        if ask:
            assert tell(env, "Do you agree to a charge?")[0] == "Yes, I agree. Still no internet."
        assert use(env, "add_data") == [f"{GIGABYTES} GB left"]
        step = tell(env, "try it")[1]
        assert (step.done, step.reward, step.components["works"]) == (True, reward, 1.0)


@pytest.mark.parametrize("needless", ["refund", "allow_roaming", "add_data"])
def test_a_needless_change_costs_the_reward(needless):
    env = make_env("airplane")
    use(env, needless)
    step = tell(env, "airplane mode off please")[1]
    assert (step.done, step.success, step.reward) == (True, False, 0.0)


def test_roaming_needs_the_phone_and_the_company():
    env = make_env("roaming")
    assert tell(env, "What is on the screen?")[0] == (
        "I see a foreign network, roaming off. Still no internet."
    )
    assert not tell(env, "roaming on please")[1].done
    use(env, "allow_roaming")
    assert tell(env, "try again")[1].reward == 1.0


def test_the_account_is_shown_for_the_right_customer_only():
    env = make_env("suspended")
    assert use(env, "lookup") == ["Ada: suspended, bill 30, 8 GB left, roaming not allowed, at home"]
    assert use(env, "lookup", customer="C9999") == ["error: no customer 'C9999'"]


def test_useless_messages_are_borne_twice():
    env = make_env("airplane")
    assert tell(env, "hello")[0] == "I do not understand."
    assert tell(env, "is it working?")[0] == "Still no internet."
    step = tell(env, "and now, does it work?")[1]
    assert (step.done, step.success, env.customer.left) == (True, False, True)


def test_a_question_is_useless_the_second_time():
    env = make_env("airplane")
    assert tell(env, "your id?")[0] == f"I am customer {ID}. Still no internet."
    assert env.customer.useless == 0
    tell(env, "your id?")
    assert env.customer.useless == 1


def test_a_distracted_customer_overhears_every_other_request_without_losing_patience():
    env = make_env("sim", "airplane", distracted=True)
    tell(env, "turn airplane mode off")
    assert tell(env, "put the sim in")[0] == "Sorry, I did not listen. What did you say?"
    assert (env.line.sim_seated, env.customer.useless) == (False, 0)
    assert tell(env, "put the sim in")[1].reward == 1.0


def test_an_accident_changes_the_state_by_itself():
    env = make_env("suspended", accident=2)
    tell(env, "what is your id?")
    assert tell(env, "what do you see?")[0].endswith("Oops, I pressed something, there is an airplane now.")
    assert env.line.airplane


@pytest.mark.parametrize("fault", ["airplane", "data off", "sim", "apn"])
def test_who_asks_for_everything_at_once_mends_nothing(fault):
    env = make_env(fault)
    text = "Airplane mode off, mobile data on, reseat the SIM, reset the APN, roaming on. Does it work?"
    assert env.customer.hear(text) == "You are only guessing. Goodbye."
    assert (env.customer.left, env.line.works) == (True, False)


def test_one_wrong_guess_is_borne_and_where_the_fault_is_named_none():
    env = make_env("sim")
    assert not tell(env, "Switch mobile data on.")[1].done
    assert tell(env, "Reseat the SIM.")[1].success
    named = Support(Task("t", "support", 4), level=1)
    wrong = "Reset the APN." if named.problem.faults != ("apn",) else "Reseat the SIM."
    assert tell(named, wrong)[1].done


def test_no_fixed_script_solves_more_of_level_1_than_one_of_its_faults():
    """Whatever the customer says, each of these goes through the remedies in its order."""
    remedies = ["Airplane mode off?", "Mobile data on?", "Reseat the SIM.", "Reset the APN and restart."]
    envs = [Support(Task("t", "support", seed), level=1) for seed in range(40)]
    for order in itertools.permutations(remedies):
        solved = set()
        for env in envs:
            env.line, env.turns = env.problem.line(), 0
            env.customer = Customer(env.problem, env.line)
            steps = itertools.chain(order, ["Does it work?"] * 4)
            last = next(step for step in (tell(env, text)[1] for text in steps) if step.done)
            if last.success:
                solved.add(env.problem.faults)
        assert len(solved) == 1, order


def test_the_turns_run_out():
    step = tell(make_env("sim", max_turns=1), "your id?")[1]
    assert (step.done, step.success, step.reward) == (True, False, 0.0)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_expert_always_succeeds(level):
    assert {play(Support(Task("t", "support", seed), level)).reward for seed in range(150)} == {1.0}


def test_harder_cases_have_more_faults_and_tell_less():
    rng = random.Random(0)
    cases = {level: make(rng, level) for level in (1, 2, 3, 4)}
    assert [len(cases[level].faults) for level in (1, 2, 3, 4)] == [1, 1, 2, 3]
    assert any(text in cases[1].opening for text in FAULTS[cases[1].faults[0]].symptoms)
    assert cases[2].customer in cases[2].opening and cases[3].customer not in cases[3].opening
    for case in cases.values():
        assert not case.line().works


def test_support_passes_every_check():
    assert [f for f in check_env("support") if not f.ok] == []
