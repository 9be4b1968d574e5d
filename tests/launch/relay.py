"""An environment whose agents take turns, for runs with several policies; processes of a run import it."""

import random

from asyncrl.env.protocol import MAIN_AGENT, Env, Step

WORDS = ["north", "south", "east", "west"]


class Relay(Env):
    """The main agent speaks, a helper answers, the main agent ends it; words that begin with "n" are worth 1."""

    blocking = False
    max_turns = 3

    def reset(self):
        self.turn = 0
        return [{"role": "user", "content": "goal north east"}]

    def step(self, action):
        self.turn += 1
        reward = float(action.content.startswith("n"))
        if self.turn == 1:
            return Step([{"role": "user", "content": "say a word"}], reward=reward, agent="helper/1")
        if self.turn == 2:
            return Step([{"role": "user", "content": "again"}], reward=reward, agent=MAIN_AGENT)
        return Step(reward=reward, done=True, success=bool(reward))

    def oracle(self, messages):
        return self.random_policy(messages, random.Random(self.task.seed * 3 + self.turn))

    def random_policy(self, messages, rng):
        return {"role": "assistant", "content": rng.choice(WORDS)}
