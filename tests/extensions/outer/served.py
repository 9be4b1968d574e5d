"""An outer optimizer's service on a folder, with the members that a test has and a clock for its deadlines."""

import numpy as np

from asyncrl.extensions.outer.client import OuterClient
from asyncrl.extensions.outer.rounds import Rounds
from asyncrl.extensions.outer.service import create_outer_app
from asyncrl.extensions.outer.settings import OuterConfig
from asyncrl.extensions.outer.tensors import decode, encode
from tests.app_thread import AppThread
from tests.credentials import RUN

SHAPES = [{"a": (2,)}, {"b": (1, 2)}]
A, B, C = ("a" * 32, "b" * 32, "c" * 32)
SETTINGS = OuterConfig(
    url="http://127.0.0.1", members=3, every=2, fragments=2, learning_rate=1.0, momentum=0.0, wait_timeout_s=100.0
)  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Served:
    """The service on a folder. `settings` are what its members have beside `SETTINGS`."""

    def __init__(self, folder, **settings):
        self.folder, self.clock, self.clients, self.number = folder, Clock(), [], 0
        self.settings = SETTINGS.model_copy(update=settings)
        self.start()

    def start(self):
        self.rounds = Rounds(self.folder / "outer", self.clock)
        self.number += 1
        self.app = AppThread(
            create_outer_app(self.rounds, RUN.access("outer")), self.folder, str(self.number)
        )

    def stop(self):
        while self.clients:
            self.clients.pop().close()
        self.end()

    def end(self):
        if self.app is not None:
            self.app.close()
            self.rounds.close()
            self.app = None

    def again(self):
        self.stop()
        self.start()

    def client(self, run, member=0, token=None, **changes):
        settings = self.settings.model_copy(update={"url": self.app.url, "member": member, **changes})
        bearer = RUN.issue("trainer").bearer("outer") if token is None else token
        self.clients.append(OuterClient(settings, bearer, run, f"run-{run[0]}"))
        return self.clients[-1]

    def member(self, run, member=0, **changes):
        client = self.client(run, member, **changes)
        if client.join(SHAPES, 1.0).start:
            client.send(0, 0, whole(a=[0.0, 0.0]), start=True)
            client.send(1, 0, whole(b=[[0.0, 0.0]]), start=True)
        return client

    def pass_deadline(self):
        self.clock.now += self.settings.wait_timeout_s
        self.rounds.close_overdue()


def whole(**values):
    return encode({name: np.array(one, np.float32) for name, one in values.items()}, 32)[0]


def weights(client, fragment=0, wanted=0):
    found = client.fetch(fragment, wanted, -1, 0.0)
    return None if found is None else next(iter(decode(found.body, SHAPES[fragment], 32).values())).tolist()
