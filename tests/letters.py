"""An environment that a policy without any training earns something in; processes of a run import it."""

from asyncrl.env.protocol import Env, Step


class Letters(Env):
    """What share of what is written are letters."""

    blocking = False

    def reset(self):
        return [{"role": "user", "content": "say a word"}]

    def step(self, action):
        text = action.content
        return Step(reward=sum(map(str.isalpha, text)) / max(len(text), 1), done=True)
