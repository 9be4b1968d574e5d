"""Plays tasks of the real tau2's domains through the adapter, and has tau2's own evaluators judge the same episodes.

Run in a Python that has tau2. Prints, as JSON, of each episode what was played, our reward and theirs.
"""

import asyncio
import json
import sys

from tau2.data_model.message import AssistantMessage, ToolCall, UserMessage
from tau2.domains.airline import environment as airline_module
from tau2.domains.retail import environment as retail_module
from tau2.domains.telecom import environment as telecom_module
from tau2.evaluator.evaluator_communicate import CommunicateEvaluator
from tau2.evaluator.evaluator_env import EnvironmentEvaluator

from asyncrl.env.host import EnvHost
from asyncrl.env.protocol import Action
from asyncrl.env.scripted import to_action
from asyncrl.extensions.env_adapters.tau2 import Tau2
from asyncrl.extensions.env_adapters.tau2_domain import open_environment
from tests.chat_server import ChatServer


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


async def play(task, turns, **config):
    """Play what `turns` returns for the environment until the user stops; return the reward and the environment."""
    host = EnvHost()
    try:
        session = await host.open(task, config)
        for number in range(30):
            step = await host.step(session.id, number, turns(session.env), 60.0)
            if step.done:
                return step.reward, session.env
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


def calls_made(task, made):
    """Return the calls of both sides as tau2's messages, with the answers that its own environment gives to them."""
    environment, found = open_environment(telecom_module, task), []
    for number, (requestor, name, arguments) in enumerate(made):
        call = ToolCall(id=str(number), name=name, arguments=arguments, requestor=requestor)
        kind = UserMessage if requestor == "user" else AssistantMessage
        found += [kind(role=requestor, content=None, tool_calls=[call]), environment.get_response(call)]
    return found


def both_sides(task):
    return len({action.requestor for action in task.evaluation_criteria.actions or ()}) == 2


async def play_telecom():
    """Telecom by its name, whose user is a chat model: one that makes the golden calls once the agent has spoken."""
    known = {task.id: task for task in telecom_module.get_tasks()}
    listed = Tau2.tasks("heldout", "tau2", domain="telecom")
    task = next(task for task in listed if both_sides(known[task.data["task_id"]]))
    theirs = known[task.data["task_id"]]
    wanted = [action for action in theirs.evaluation_criteria.actions if action.requestor == "user"]

    def complete(request):
        done = sum(message["role"] == "tool" for message in request["messages"])
        spoken = sum(message["role"] == "user" for message in request["messages"]) > 1
        message = {"role": "assistant", "content": "###STOP###" if spoken else "It does not work."}
        if spoken and done < len(wanted):
            function = {"name": wanted[done].name, "arguments": json.dumps(wanted[done].arguments)}
            message["tool_calls"] = [{"id": f"u{done}", "type": "function", "function": function}]
        return {"choices": [{"message": message}]}

    server, found = ChatServer(complete), []
    try:
        for turns in (expert, idle):
            reward, env = await play(task, turns, domain="telecom", user_url=server.url)
            said = calls_made(theirs, env.made)
            judged = EnvironmentEvaluator.calculate_reward(telecom_module.get_environment, theirs, said)
            found.append(["telecom", turns.__name__, reward, judged.reward])
    finally:
        server.stop()
    return found


async def main():
    found = []
    for domain, module in (("airline", airline_module), ("retail", retail_module)):
        known = {task.id: task for task in module.get_tasks()}
        listed = Tau2.tasks("heldout", "tau2", domain=f"tau2_real:{domain}")
        # One that asks for changes and for something to be said.
        task = next(task for task in listed if asks_for_both(known[task.data["task_id"]]))
        theirs = known[task.data["task_id"]]
        for turns in (expert, idle, silent):
            reward, env = await play(task, turns, domain=f"tau2_real:{domain}")
            said = trajectory(module, env.messages)
            judged = EnvironmentEvaluator.calculate_reward(module.get_environment, theirs, said).reward
            judged *= CommunicateEvaluator.calculate_reward(theirs, said).reward
            found.append([domain, turns.__name__, reward, judged])
    found += await play_telecom()
    print(json.dumps(found))


if __name__ == "__main__":
    # The adapter imports the domains by this name.
    sys.modules["tau2_real"] = sys.modules["__main__"]
    asyncio.run(main())
