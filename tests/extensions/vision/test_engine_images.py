"""A vision model on a real engine: every sampled token of conversations with images has the log-probability that the
trainer's forward pass gives it, before and after its weights change."""

import asyncio
import dataclasses

import numpy as np
import pytest
import torch

from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.data.codec import decode_trajectory, encode_trajectory
from asyncrl.errors import InputError
from asyncrl.extensions.agents.gateway.owner_api import trajectory_to_json
from asyncrl.generation import GenerateRequest
from asyncrl.images import image_key, read_data_uri
from asyncrl.train.models.checkpoint_form import checkpoint_form
from asyncrl.train.models.loading import load_policy
from asyncrl.train.step.step_batch import StepBatch, pad_rows
from asyncrl.types import IMAGES, PlacedImage, Status, Task
from asyncrl.weights.files import write_weights
from tests.engines import ENGINE, serving
from tests.extensions.agents.gateway.conftest import Gateway
from tests.services.engine.test_engine import with_client
from tests.vision import CONTEXT, picture, shown, vision_model

pytestmark = pytest.mark.slow
TOLERANCE = 1e-4
CONVERSATIONS = [
    [
        [shown("look ", picture(0, 32, 48), "where", picture(1, 64, 64))],
        [shown(picture(0, 32, 48))],
        [shown("go")],
    ],
    [
        [shown(picture(2, 80, 32))],
        [shown("look"), shown(picture(1, 64, 64), picture(3, 16, 16))],
        [shown("go")],
    ],
    [[shown("north")], [shown("south ", picture(4, 48, 48))], [shown(picture(5, 24, 60))]],
    [[shown("north")], [shown("south")], [shown("go")]],
]


@pytest.fixture(scope="module")
def looking():
    return load_renderer(vision_model())


@pytest.fixture(scope="module")
def policy():
    return load_policy(vision_model(), "float32")


def change(policy, seed, part=""):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if part in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)


async def converse(client, renderer, number, tokens, version):
    """Play one of `CONVERSATIONS`; the policy takes a turn after each of its observations."""
    builder = TrajectoryBuilder(Task(f"t{number}", "none"), 0)
    for turn, messages in enumerate(CONVERSATIONS[number]):
        ids = renderer.observation(messages) if turn else renderer.opening(messages)
        builder.add_context(ids, "", renderer.extras(ids, messages))
        request = GenerateRequest(
            f"{version}-{number}-{turn}",
            builder.token_ids(),
            tokens,
            extras=builder.asked(),
            min_version=version,
        )
        builder.add_turn(await client.generate(request))
    return builder.finish(Status.FINISHED)


async def play(client, renderer, version, tokens=8):
    played = await asyncio.gather(
        *(converse(client, renderer, number, tokens, version) for number in range(len(CONVERSATIONS)))
    )
    # As they reach the trainer.
    return [decode_trajectory(encode_trajectory(one)) for one in played]


@torch.no_grad()
def trainer_logp(policy, trajectories):
    """The log-probabilities of all rows in one micro-batch, by row."""
    rows = pad_rows(
        StepBatch(tuple(trajectories), torch.zeros(len(trajectories), dtype=torch.long), 0),
        range(len(trajectories)),
    )
    logp = policy(rows.token_ids, rows.mask, 1.0, extras=rows.extras)["logp"]
    return [logp[row, : t.num_tokens].numpy() for row, t in enumerate(trajectories)]


def worst(policy, trajectories):
    """The largest difference of any sampled token's log-probability."""
    found = trainer_logp(policy, trajectories)
    return max(
        float(np.abs(t.behavior_logprobs - logp)[t.loss_mask].max())
        for t, logp in zip(trajectories, found, strict=True)
    )


async def commit(client, file):
    await client.request("weights/prepare", file.to_json())
    await client.request("weights/commit", file.to_json())


class Served:
    """The engine as a gateway asks it."""

    def __init__(self, client):
        self.generate = client.generate

    async def context_limit(self):
        return CONTEXT

    def hold(self, session, num_tokens, ttl_s):
        return


def blocks(message):
    """A message in Anthropic's form."""
    found = []
    for part in message["content"]:
        if part["type"] == "image_url":
            head, _, data = part["image_url"]["url"].partition(",")
            source = {"type": "base64", "media_type": head[5:].partition(";")[0], "data": data}
            part = {"type": "image", "source": source}
        found.append(part)
    return {"role": "user", "content": found}


def items(message):
    """A message as an item of the responses API."""
    if message["role"] == "assistant":
        return {"type": "message", "role": "assistant", "content": message["content"]}
    content = [
        {"type": "input_image", "detail": "auto", "image_url": part["image_url"]["url"]}
        if part["type"] == "image_url"
        else {"type": "input_text", "text": part["text"]}
        for part in message["content"]
    ]
    return {"type": "message", "role": "user", "content": content}


async def through_gateway(client, renderer, ask, clients):
    """Two turns, each after an image; return what is trained of them."""
    gateway = Gateway(renderer, Served(client))
    episode = await gateway.open()
    messages = []
    for observation in (CONVERSATIONS[0][0], CONVERSATIONS[1][0]):
        messages += observation
        said = await ask(getattr(gateway, clients)(episode), messages)
        messages.append({"role": "assistant", "content": said})
    trajectories, summary = await gateway.finish(episode, reward=1.0)
    assert summary["counters"]["retokenized_tokens"] == 0
    (found,) = [decode_trajectory(encode_trajectory(one)) for one in trajectories]
    assert (len(found.turns), len(found.extras["images"])) == (2, 3)
    files = trajectory_to_json(found)["image_files"]
    assert {key: read_data_uri(uri, key) for key, uri in files.items()} == {
        i.key: i.data for i in found.extras["images"]
    }
    return found


async def ask_openai(client, messages):
    answer = await client.chat.completions.create(model="m", messages=messages, max_tokens=8)
    return answer.choices[0].message.content


async def ask_anthropic(client, messages):
    shown = [blocks(m) if m["role"] == "user" else m for m in messages]
    answer = await client.messages.create(model="m", messages=shown, max_tokens=8)
    # A turn without any text has no block, and the API takes no message without content.
    return [{"type": "text", "text": "".join(block.text for block in answer.content)}]


async def ask_responses(client, messages):
    answer = await client.responses.create(model="m", input=[items(m) for m in messages], max_output_tokens=8)
    return answer.output_text


async def check_gateway(client, renderer, policy):
    """Agents show images by any API, and are trained on the tokens and images that the engine read."""
    found = [
        await through_gateway(client, renderer, ask_openai, "openai"),
        await through_gateway(client, renderer, ask_anthropic, "anthropic"),
        await through_gateway(client, renderer, ask_responses, "openai"),
    ]
    assert worst(policy, found) < TOLERANCE
    openings = [t.token_ids[: t.turns[0].start] for t in found]
    for opening, played in zip(openings, found, strict=True):
        np.testing.assert_array_equal(opening, openings[0])
        assert played.extras["images"][:2] == found[0].extras["images"][:2]
    other = dataclasses.replace(found[0], extras={"images": found[0].extras["images"][:2]})
    assert worst(policy, [other]) > 0.01, "the image of the second turn is seen, too"


async def check_refusals(client, renderer):
    """What is wrong with a request's images is said, and the engine goes on."""
    messages = CONVERSATIONS[1][0]
    ids = renderer.opening(messages)
    (image,) = renderer.images(ids, messages)
    cut = image.data[: len(image.data) // 2]
    wrong = {
        "must be .* the image token": [PlacedImage(image.start - 1, image.end - 1, image.key, image.data)],
        "is no place": [image, image],
        "places": [PlacedImage(image.start, image.end - 1, image.key, image.data)],
        "not the hash": [PlacedImage(image.start, image.end, "0" * 32, image.data)],
        "cannot be decoded|whole image": [PlacedImage(image.start, image.end, image_key(cut), cut)],
    }
    for says, images in wrong.items():
        with pytest.raises(InputError, match=says):
            await client.generate(GenerateRequest(says, ids, 4, extras={IMAGES: tuple(images)}))
    answer = await client.generate(GenerateRequest("after", ids, 4, extras={IMAGES: (image,)}))
    assert len(answer.token_ids) >= 1


def test_every_sampled_token_of_conversations_with_images_agrees_before_and_after_updates(
    looking, policy, tmp_path, tmp_path_factory
):
    weights = tmp_path_factory.mktemp("weights")

    async def scenario(client):
        first = await play(client, looking, 0)
        assert sum(len(t.extras.get("images", ())) for t in first) == 8
        assert worst(policy, first) < TOLERANCE
        blind = [
            dataclasses.replace(t, extras={"images": t.extras["images"][1:]}) if t.extras else t
            for t in first
        ]
        assert worst(policy, blind) > 0.1, "what was seen decides what is said"
        await check_refusals(client, looking)
        await check_gateway(client, looking, policy)
        for version, part in ((1, "visual"), (2, "")):
            # What was computed of an image under the old weights of the vision tower is not used again.
            change(policy, version, part)
            written = checkpoint_form(policy.model, policy.model.named_parameters())
            await commit(client, write_weights(weights, version, written))
            assert worst(policy, await play(client, looking, version)) < TOLERANCE
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        running = asyncio.create_task(play(client, looking, 2, tokens=60))
        await asyncio.sleep(0.3)
        change(policy, 3, "visual")
        await commit(
            client, write_weights(weights, 3, checkpoint_form(policy.model, policy.model.named_parameters()))
        )
        crossed = await running
        after = trainer_logp(policy, crossed)
        policy.load_state_dict(before)
        for t, new, old in zip(crossed, after, trainer_logp(policy, crossed), strict=True):
            expected = np.where(t.versions == 3, new, old)
            assert np.abs(t.behavior_logprobs - expected)[t.loss_mask].max() < TOLERANCE

    # Blocks that are short enough for later turns to find whole images in the prefix cache.
    engine = ENGINE | {"max_model_len": CONTEXT, "extra_args": ["--block-size", "32"]}
    with serving(tmp_path / "engine", vision_model(), weights, engine=engine) as child:
        with_client(child.url, scenario)


def test_an_engine_of_a_text_model_refuses_images(engine_url, looking):
    messages = [shown(picture(0))]
    ids = looking.opening(messages)
    request = GenerateRequest("seen", ids, 4, extras={IMAGES: looking.images(ids, messages)})
    with pytest.raises(InputError, match="reads text alone"):
        with_client(engine_url, lambda client: client.generate(request))
