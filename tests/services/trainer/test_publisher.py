"""The trainer's side of a version's way to the engines."""

from functools import partial

import torch

from asyncrl.errors import InfrastructureError
from asyncrl.services.trainer.publisher import SyncFilePublisher
from asyncrl.weights.files import read_weights, weights_path
from asyncrl.weights.publish import FilePublisher
from tests.train.one_step import make_engine, snapshot
from tests.weights.test_publish import Engine


class Closing(Engine):
    async def close(self):
        """Nothing is open."""


def test_what_was_gathered_is_published_as_it_was_then_also_when_an_engine_fails(tiny_model, tmp_path):
    engine, calls = make_engine(tiny_model), []
    publisher = SyncFilePublisher(["good", "bad"], "token", 0, partial(FilePublisher, tmp_path))
    publisher._clients = {
        "good": Closing("good", calls),
        "bad": Closing("bad", calls, prepare=InfrastructureError("gone")),
    }
    before = snapshot(engine)
    send = publisher.gather(1, engine)
    for parameter in engine.engine.module.parameters():
        parameter.data.add_(1.0)
    assert calls == []
    report = send()
    publisher.close()
    assert report.failed == {"bad": "weights/prepare: gone"}
    assert ("good", "commit", 1) in calls
    sent = dict(read_weights(weights_path(tmp_path, 1)))
    assert len(sent) > 4
    assert all(torch.equal(sent[name], before[name]) for name in sent)
    assert not any(torch.equal(sent[name], tensor) for name, tensor in engine.weights() if name in sent)


def test_earlier_weights_that_the_next_batch_may_be_checked_with_are_there_while_a_version_is_sent(
    tiny_model, tmp_path
):
    engine = make_engine(tiny_model)
    publisher = SyncFilePublisher(["good"], "token", 0, partial(FilePublisher, tmp_path))
    publisher._clients = {"good": Closing("good", [])}
    for version in (1, 2):
        publisher.publish(version, engine)
    send = publisher.gather(3, engine)
    kept = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    send()
    publisher.close()
    assert kept == ["weights-00000002.safetensors"]
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == [
        *kept,
        "weights-00000003.safetensors",
    ]
