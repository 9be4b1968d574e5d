"""An environment without scripted policies."""

from asyncrl.env.protocol import Env


class Silent(Env):
    blocking = False

    def reset(self):
        return [{"role": "user", "content": "?"}]
