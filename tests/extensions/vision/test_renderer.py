"""Messages with images as tokens, from the renderer to the trajectory."""

import numpy as np
import pytest

from asyncrl.chat.conversation import Conversation
from asyncrl.chat.renderer import load_renderer
from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.data.transcript import read_transcript
from asyncrl.env.protocol import Action
from asyncrl.errors import EnvironmentFailure, InputError
from asyncrl.generation import Generated
from asyncrl.images import decode_image
from asyncrl.types import Status, Task
from tests.vision import picture, shown, vision_model


@pytest.fixture(scope="module")
def looking():
    return load_renderer(vision_model())


def runs(ids, token):
    """The lengths of the runs of a token."""
    same = np.concatenate([[False], ids == token, [False]]).astype(int)
    return (np.flatnonzero(np.diff(same) < 0) - np.flatnonzero(np.diff(same) > 0)).tolist()


def test_an_image_takes_a_token_for_every_16_pixels_along_each_side(looking):
    messages = [shown("look ", picture(0, 32, 48), "where", picture(1, 64, 64)), shown(picture(0, 32, 48))]
    ids = looking.opening(messages)
    assert runs(ids, looking.image_processor.image_token_id) == [6, 16, 6]
    placed = looking.images(ids, messages)
    assert [image.end - image.start for image in placed] == [6, 16, 6]
    assert all((ids[i.start : i.end] == looking.image_processor.image_token_id).all() for i in placed)
    assert placed[0].key == placed[2].key != placed[1].key
    assert placed[0].data is placed[2].data, "one copy of equal files"
    assert np.array_equal(np.asarray(decode_image(placed[1].data)), np.asarray(picture(1, 64, 64)))


def test_counts_are_those_of_the_models_own_processor(looking):
    processor = looking.image_processor
    for height, width in ((17, 90), (7, 8), (300, 40), (700, 650)):
        messages = [shown(picture(0, height, width))]
        ids = looking.opening(messages)
        (placed,) = looking.images(ids, messages)
        pixels, grid = processor.pixels(placed)
        assert placed.end - placed.start == grid.prod() // 4
        assert pixels.shape == (grid.prod(), processor.patch_values)
        assert placed.end - placed.start <= processor.max_tokens


def test_what_two_messages_show_differs_in_the_cache_of_renderings_too(looking):
    small, large = (looking.observation([shown("look", picture(0, side, side))]) for side in (16, 64))
    assert len(large) - len(small) == 15


def test_a_text_that_holds_the_image_token_is_refused(looking):
    with pytest.raises(InputError, match="2 image tokens for 1 images"):
        looking.opening([shown("<|image_pad|>", picture(0))])
    with pytest.raises(InputError, match="1 image tokens for 0 images"):
        looking.opening([{"role": "user", "content": "<|image_pad|>"}])


def test_a_model_that_reads_text_alone_refuses_images(renderer):
    with pytest.raises(InputError, match="reads text alone"):
        renderer.opening([shown("look", picture(0))])
    task = Task("t", "an-env")
    with pytest.raises(EnvironmentFailure, match=r"an-env.*reads text alone"):
        Conversation(TrajectoryBuilder(task, 0), renderer, [shown("look", picture(0))], [])


def test_the_address_of_an_image_is_the_environments_failure(looking):
    part = {"type": "image_url", "image_url": {"url": "http://127.0.0.1/cat.png"}}
    with pytest.raises(EnvironmentFailure, match="addresses are not fetched"):
        Conversation(TrajectoryBuilder(Task("t", "e"), 0), looking, [{"role": "user", "content": [part]}], [])


def test_an_episode_keeps_what_was_seen_where_it_was_seen(looking):
    builder = TrajectoryBuilder(Task("t", "e"), 0)
    talk = Conversation(builder, looking, [shown("look", picture(0))], [])
    said = looking.assistant({"role": "assistant", "content": "north"})
    # What a policy samples may be the image token, and is no image.
    sampled = np.concatenate([[looking.image_processor.image_token_id], said]).astype(np.int32)
    count = len(sampled)
    for number in range(2):
        builder.add_turn(Generated(sampled, np.zeros(count, np.float32), np.zeros(count, np.int32), "stop"))
        talk.append_action(Action("north"))
        talk.append_observation([shown("where", picture(number, 48, 48))], "")
    trajectory = builder.finish(Status.FINISHED)
    ids, token = trajectory.token_ids, looking.image_processor.image_token_id
    assert [i.end - i.start for i in trajectory.extras["images"]] == [4, 9, 9]
    assert all((ids[i.start : i.end] == token).all() for i in trajectory.extras["images"])
    assert not any(trajectory.loss_mask[i.start : i.end].any() for i in trajectory.extras["images"])
    assert (ids == token).sum() == 4 + 9 + 9 + 2
    states = {turn.observation_id for turn in trajectory.turns}
    assert len(states) == 2, "another picture is another state"
    first, *_ = read_transcript(trajectory.conversation, [0.0, 0.0])
    assert first["content"] == f"look\n[image {trajectory.extras['images'][0].key}]"
    talk.drop_observation()
    assert [i.end - i.start for i in builder.asked()["images"]] == [4, 9], (
        "an observation that is not read is not kept"
    )
