"""Two engines, one of them over two processes, get versions of a model with MLA and experts over one gloo group, and
further ones over HTTP and by the carrier of one's own that the documentation shows.

Both start once for all of it: their answers must be those of the new weights, whatever was repacked or derived from the
old ones; an engine whose reload fails halfway ends, and catches up without keeping the other from the next version.
"""

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from asyncrl.errors import InfrastructureError
from asyncrl.extensions.collective_weights.carrier import CollectiveCarrier
from asyncrl.extensions.http_weights.carrier import HttpCarrier
from asyncrl.extensions.weight_deltas.transport import WithDeltas
from asyncrl.generation import GenerateRequest
from asyncrl.launch.checks.check import check_carrier
from asyncrl.services.engine.client import EngineClient
from asyncrl.services.trainer.transports import own_carrier
from asyncrl.train.models.checkpoint_form import checkpoint_form
from asyncrl.weights.carrier import Carried
from asyncrl.weights.files import write_weights
from asyncrl.weights.publish import FilePublisher
from scripts.bench.slow_link import SourceBehindLink
from tests.credentials import RUN
from tests.docs.blocks import blocks
from tests.engines import END_S, ENGINE, serving, starting
from tests.models import save_deepseek
from tests.services.engine.test_engine import contexts, token_logp
from tests.waiting import START_S

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
TOKENS = 12


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """`(folder, model)`; the model is changed by each version."""
    folder = tmp_path_factory.mktemp("deepseek")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(tiny_model) / name, folder)
    return str(folder), save_deepseek(folder)


class CarriedToEach(Carried):
    """Has each engine in the group, where those of one machine share a copy."""

    async def carry(self, file, engines):
        return await self.carrier.carry(file, engines)


def change(model, seed, part=""):
    """Change the parameters whose names contain `part`."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (parameter for name, parameter in model.named_parameters() if part in name):
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


def half_broken(model):
    """Weights of which all layers load, and what comes after them does not."""
    for name, tensor in checkpoint_form(model, model.named_parameters()):
        yield name, tensor[1:].clone() if name == "model.norm.weight" else tensor


def documented_carrier(folder):
    """Return the carrier that docs/engine-and-trainer.md shows."""
    (block,) = (b for b in blocks("docs/engine-and-trainer.md") if b.note == "save as my_carrier.py")
    file = folder / "my_carrier.py"
    file.write_text(block.text)
    check_carrier(f"{file}:Copies")
    return own_carrier(f"{file}:Copies", None, torch.device("cpu"))


async def disagreement(clients, model, version, vocab_size=512):
    """The largest difference of any token's log-probability between any engine and the model."""
    worst = 0.0
    for client in clients:
        answers = await asyncio.gather(
            *(
                client.generate(GenerateRequest(f"{version}-{i}", context, TOKENS, min_version=version))
                for i, context in enumerate(contexts(3, 24, vocab_size, seed=version))
            )
        )
        for context, answer in zip(contexts(3, 24, vocab_size, seed=version), answers, strict=True):
            assert set(answer.versions.tolist()) == {version}
            expected = token_logp(model, context, answer.token_ids)
            worst = max(worst, float(np.abs(answer.logprobs - expected).max()))
    return worst


def test_versions_reach_both_engines_and_one_that_ended_in_a_reload_catches_up(
    model, tmp_path, tmp_path_factory
):
    path, policy = model
    weights = tmp_path_factory.mktemp("weights")
    two = {"engine": ENGINE | {"tensor_parallel": 2}}

    async def scenario(urls):
        clients = [EngineClient(url) for url in urls]
        carrier = CollectiveCarrier(torch.device("cpu"), timeout_s=20.0)
        publisher = FilePublisher(
            weights, clients, phase_timeout_s=60.0, transport=WithDeltas(CarriedToEach(carrier))
        )
        source = SourceBehindLink(RUN)
        over_http = FilePublisher(
            weights,
            [],
            phase_timeout_s=60.0,
            transport=WithDeltas(Carried(HttpCarrier(source, stall_s=200.0))),
        )

        own = FilePublisher(
            weights, [], phase_timeout_s=60.0, transport=Carried(documented_carrier(tmp_path))
        )

        async def publish(version, part="", publisher=publisher):
            change(policy, version, part)
            file = publisher.write(version, checkpoint_form(policy, policy.named_parameters()))
            return await publisher.publish(file)

        async def publish_over_http(version, part, engines):
            """Return the bytes that the trainer sends for a version, and what was reported."""
            before = source.carried_bytes
            report = await publish(version, part, over_http)
            assert (report.failed, len(report.pause_s)) == ({}, 2)
            assert await disagreement(engines, policy, version) < TOLERANCE
            return source.carried_bytes - before, report

        try:
            assert await disagreement(clients, policy, 0) < TOLERANCE
            sent_bytes = []
            for version, part in ((1, ""), (2, "1.self_attn.kv_b_proj"), (3, "experts")):
                report = await publish(version, part)
                assert report.failed == {} and len(report.pause_s) == 2
                assert await disagreement(clients, policy, version) < TOLERANCE
                sent_bytes.append(carrier.sent_bytes - sum(sent_bytes))
            assert carrier.groups == 1
            # Of the second and third version only what had changed.
            assert max(sent_bytes[1:]) < sent_bytes[0] / 2
            # They hold copies of their own, of the newest version only.
            assert len(list(weights.glob("staged-*/*/*.safetensors"))) == 2
            broken = write_weights(weights, 9, half_broken(policy))
            with pytest.raises(InfrastructureError):
                await clients[1].request("weights/commit", broken.to_json())
            await asyncio.to_thread(second.popen.wait, END_S)
            report = await publish(4)
            assert list(report.failed) == [urls[1]]
            assert await disagreement(clients[:1], policy, 4) < TOLERANCE
            with serving(tmp_path / "again", path, weights) as again:
                late = EngineClient(again.url)
                try:
                    assert await disagreement([late], policy, 4) < TOLERANCE
                    await publisher.follow([clients[0], late])
                    assert (await publish(5)).failed == {}
                    assert await disagreement([clients[0], late], policy, 5) < TOLERANCE
                    await over_http.follow([clients[0], late])
                    sent, whole = await publish_over_http(6, "", [clients[0], late])
                    assert whole.num_bytes <= sent < 1.2 * whole.num_bytes
                    sent, part = await publish_over_http(7, "experts", [clients[0], late])
                    assert 0 < part.short_bytes["delta"] <= sent < whole.num_bytes / 2
                    await own.follow([clients[0], late])
                    assert (await publish(8, "", own)).failed == {}
                    assert await disagreement([clients[0], late], policy, 8) < TOLERANCE
                    assert len(list(weights.glob("staged-*/*/weights-00000008.safetensors"))) == 2
                finally:
                    await late.close()
        finally:
            for one in (publisher, over_http, own):
                await one.close()
                one.transport.close()
            await asyncio.gather(*(client.close() for client in clients))

    with (
        starting(tmp_path / "first", path, weights, **two) as (group_of_first, first),
        starting(tmp_path / "second", path, weights) as (group_of_second, second),
    ):
        group_of_first.wait_ready(first, START_S)
        group_of_second.wait_ready(second, START_S)
        asyncio.run(scenario([first.url, second.url]))
