"""Plays tasks of the real tau2's domains through the adapter, and has tau2's own evaluators judge the same episodes.

Run in a Python that has tau2. Prints, as JSON, of each episode what was played, our reward and theirs.
"""

import asyncio
import json
import sys

from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
from tau2.domains.airline import environment as airline_module
from tau2.domains.retail import environment as retail_module
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

from asyncrl.env.adapters.tau2 import Tau2
from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action
from asyncrl.env.scripted import to_action


class Customer:
    """States the whole wish, and stops once it was answered. tau2's own user is a language model."""

    def __init__(self, task):
        self.task = task

    def respond(self, messages):
        return "###STOP###" if messages else str(self.task.user_scenario)


class Domain:
    """A domain of tau2 as the adapter takes it."""

    def __init__(self, module):
        self.get_environment, self.get_tasks = module.get_environment, module.get_tasks
        self.get_tasks_split = module.get_tasks_split

    def get_user(self, task, environment):
        return Customer(task)


def airline():
    return Domain(airline_module)


def retail():
    return Domain(retail_module)


def trajectory(module, messages):
    """Return our messages as tau2's, with the answers that its own environment gives to the calls."""
    environment, found = module.get_environment(), []
    for message in messages:
        if message["role"] == "user":
            found.append(UserMessage(role="user", content=message["content"]))
        elif message["role"] == "assistant":
            calls = [
                ToolCall(
                    id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"]
                )
                for call in message.get("tool_calls", ())
            ]
            found.append(
                AssistantMessage(role="assistant", content=message["content"], tool_calls=calls or None)
            )
            found += [environment.get_response(call) for call in calls]
    return found


async def play(domain, task, turns):
    """Play what `turns` returns for the environment until the user stops; return the reward and the messages."""
    host = EnvHost()
    try:
        session = await host.open(task, {"domain": f"tau2_real:{domain}"})
        for number in range(30):
            step = await host.step(session.id, number, turns(session.env), 60.0)
            if step.done:
                return step.reward, session.env.messages
        raise AssertionError("the episode did not end")
    finally:
        await host.close_all()


def expert(env):
    return to_action(env.oracle(env.messages))


def idle(env):
    return Action("I cannot help you.")


def silent(env):
    """Make the right calls, and say nothing of what they showed."""
    action = expert(env)
    return action if action.tool_calls else Action("Done.")


def asks_for_both(task):
    criteria = task.evaluation_criteria
    return bool(criteria.actions and criteria.communicate_info)


async def main():
    found = []
    for domain, module in (("airline", airline_module), ("retail", retail_module)):
        known = {task.id: task for task in module.get_tasks()}
        listed = Tau2.tasks("heldout", "tau2", domain=f"tau2_real:{domain}")
        # One that asks for changes and for something to be said.
        task = next(task for task in listed if asks_for_both(known[task.data["task_id"]]))
        theirs = known[task.data["task_id"]]
        for turns in (expert, idle, silent):
            reward, messages = await play(domain, task, turns)
            said = trajectory(module, messages)
            judged = EnvironmentEvaluator.calculate_reward(module.get_environment, theirs, said).reward
            judged *= CommunicateEvaluator.calculate_reward(theirs, said).reward
            found.append([domain, turns.__name__, reward, judged])
    print(json.dumps(found))


if __name__ == "__main__":
    # The adapter imports the domains by this name.
    sys.modules["tau2_real"] = sys.modules["__main__"]
    asyncio.run(main())
