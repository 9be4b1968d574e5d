"""Rows with images: positions, places, and the trunk beside the model's own forward pass."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3VLForConditionalGeneration

from asyncrl.chat.renderer import load_renderer
from asyncrl.extensions.vision.rows import row_images, run_vision_trunk, token_positions
from tests.extensions.vision.vision_ranks import STAGES, step
from tests.vision import picture, shown, vision_model


@pytest.fixture(scope="module")
def looking():
    return load_renderer(vision_model())


@pytest.fixture(scope="module")
def rows(looking):
    """Three rows: two images of different shapes, one, none."""
    shown_in = [
        [shown("look ", picture(0, 32, 48), "where", picture(1, 64, 64))],
        [shown(picture(2, 80, 32))],
        [shown("north")],
    ]
    ids = [looking.opening(messages) for messages in shown_in]
    return ids, [looking.images(one, messages) for one, messages in zip(ids, shown_in, strict=True)]


def padded(ids):
    found = torch.zeros(len(ids), max(map(len, ids)), dtype=torch.long)
    for row, one in enumerate(ids):
        found[row, : len(one)] = torch.from_numpy(one.astype(np.int64))
    return found


def qwen3(looking):
    return Qwen3VLForConditionalGeneration.from_pretrained(vision_model()).eval()


def qwen2_5(looking):
    own = Qwen3VLForConditionalGeneration.from_pretrained(vision_model()).config
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": own.text_config.vocab_size, "hidden_size": 64, "intermediate_size": 128,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
        },
        vision_config={
            "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "patch_size": 8,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64, "window_size": 32,
            "fullatt_block_indexes": [1],
        },
        image_token_id=own.image_token_id, video_token_id=own.video_token_id,
        vision_start_token_id=own.vision_start_token_id, vision_end_token_id=own.vision_end_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(config).eval()


def test_positions_of_a_text_with_an_image_of_two_by_three_tokens_by_hand():
    found = token_positions(10, [(2, 2, 3)])
    assert found.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert token_positions(3, []).tolist() == [[0, 1, 2]] * 3


@pytest.mark.parametrize("make", [qwen3, qwen2_5])
@torch.no_grad()
def test_the_trunk_gives_what_the_models_own_forward_pass_gives(looking, rows, make):
    model = make(looking)
    ids, images = rows
    token_ids = padded(ids)
    seen = row_images(looking.image_processor, images, tuple(token_ids.shape))
    ours = run_vision_trunk(model.model, token_ids, seen)
    types = seen.places.int()
    positions, _ = model.model.get_rope_index(token_ids, types, image_grid_thw=seen.grid_thw)
    for row, one in enumerate(ids):
        assert torch.equal(seen.positions[:, row, : len(one)], positions[:, row, : len(one)])
    own = model.model(
        input_ids=token_ids,
        pixel_values=seen.pixel_values,
        image_grid_thw=seen.grid_thw,
        mm_token_type_ids=types,
    ).last_hidden_state
    torch.testing.assert_close(ours, own, atol=1e-5, rtol=1e-5)
    # Other pixels are other states, for what stands behind them alone.
    other = row_images(looking.image_processor, [images[0][:1], *images[1:]], tuple(token_ids.shape))
    changed = (run_vision_trunk(model.model, token_ids, other) - ours).abs().amax(-1)
    second = images[0][1].start
    assert changed[0, :second].max() < 1e-5 < 1e-2 < changed[0, second : len(ids[0])].max()
    assert changed[1:].max() < 1e-5


@pytest.mark.parametrize("make", [qwen3, qwen2_5])
def test_rows_without_images_run_the_vision_tower_and_teach_it_nothing(looking, rows, make):
    model = make(looking)
    token_ids = padded(rows[0][2:])
    seen = row_images(looking.image_processor, [()], tuple(token_ids.shape))
    hidden = run_vision_trunk(model.model, token_ids, seen)
    own = model.model(input_ids=token_ids).last_hidden_state
    torch.testing.assert_close(hidden, own, atol=1e-5, rtol=1e-5)
    hidden.sum().backward()
    tower = [p.grad for p in model.model.visual.parameters()]
    assert all(grad is not None and not grad.any() for grad in tower)


def test_an_image_that_several_rows_show_is_seen_once_and_learns_from_all_of_them(looking):
    model = qwen3(looking)
    same, other = picture(0, 32, 48), picture(1, 64, 64)
    conversations = [[shown(same, "look", other)], [shown("north ", same)], [shown(other, same, other)]]
    ids = [looking.opening(messages) for messages in conversations]
    placed = [looking.images(one, messages) for one, messages in zip(ids, conversations, strict=True)]
    token_ids = padded(ids)

    def gradient(rows, images):
        """The tower's gradient of a sum over the rows' states, and these states."""
        model.zero_grad()
        seen = row_images(looking.image_processor, images, tuple(rows.shape))
        hidden = run_vision_trunk(model.model, rows, seen)
        hidden[..., ::2].sum().backward()
        grads = [p.grad.clone() for p in model.model.visual.parameters()]
        return hidden.detach(), torch.cat([g.flatten() for g in grads]), seen

    together, found, seen = gradient(token_ids, placed)
    assert seen.grid_thw.tolist() == [[1, 4, 6], [1, 8, 8]]
    assert len(seen.pixel_values) == 4 * 6 + 8 * 8
    small, large = list(range(6)), list(range(6, 22))
    assert seen.parts.tolist() == [*small, *large, *small, *large, *small, *large]
    alone = [gradient(token_ids[row : row + 1], [placed[row]]) for row in range(3)]
    torch.testing.assert_close(together, torch.cat([one[0] for one in alone]), atol=1e-5, rtol=1e-5)
    expected = sum(one[1] for one in alone)
    assert (found - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.slow
def test_two_ranks_take_the_step_of_one_where_some_rows_have_images(two_ranks, tmp_path):
    model = vision_model()
    expected = step(model, 0)
    assert expected["norm"] > 0.01
    two_ranks.call("tests.extensions.vision.vision_ranks", model, str(tmp_path))
    for stage in STAGES:
        found = load_file(tmp_path / f"step-{stage}.safetensors")
        for name, tensor in found.items():
            assert (tensor - expected[name]).norm() < 1e-5 * expected[name].norm()
