"""The arithmetic of an outer optimizer, on numbers worked out by hand."""

import numpy as np
import pytest

from asyncrl.extensions.outer.algo.blockwise import BLOCK, code_shape, dequantize, quantize
from asyncrl.extensions.outer.algo.fragments import split_fragments
from asyncrl.extensions.outer.algo.gossip import draw_pairs, gossip_step, largest_rate
from asyncrl.extensions.outer.algo.mean_gradient import mean_gradient, pseudo_gradient
from asyncrl.extensions.outer.algo.mix import carried_over, mixed
from asyncrl.extensions.outer.algo.nesterov import nesterov_step
from asyncrl.extensions.outer.algo.schedule import due_fragments


def f32(*values):
    return np.array(values, np.float32)


def test_the_pseudo_gradient_points_from_the_members_weights_back_to_the_global_ones():
    first = pseudo_gradient({"w": f32(1.0, 2.0)}, {"w": f32(0.5, 2.5)})
    second = pseudo_gradient({"w": f32(1.0, 2.0)}, {"w": f32(1.0, 1.0)})
    assert first["w"].tolist() == [0.5, -0.5]
    mean = mean_gradient([first, second])
    assert mean["w"].tolist() == [0.25, 0.25]
    assert mean["w"].dtype == np.float32


def test_nesterov_steps_twice_along_the_same_gradient():
    update, buffer = nesterov_step(f32(1.0), f32(0.0), learning_rate=0.5, momentum=0.5)
    # b = 1, update = 0.5 (1 + 0.5 * 1)
    assert (update.tolist(), buffer.tolist()) == ([0.75], [1.0])
    update, buffer = nesterov_step(f32(1.0), buffer, learning_rate=0.5, momentum=0.5)
    # b = 0.5 * 1 + 1 = 1.5, update = 0.5 (1 + 0.5 * 1.5)
    assert (update.tolist(), buffer.tolist()) == ([0.875], [1.5])


def test_without_momentum_and_at_rate_one_the_global_weights_become_the_mean_of_the_members():
    base, members = {"w": f32(4.0)}, [{"w": f32(1.0)}, {"w": f32(3.0)}]
    mean = mean_gradient([pseudo_gradient(base, member) for member in members])
    update, _ = nesterov_step(mean["w"], f32(0.0), 1.0, 0.0)
    assert (base["w"] - update).tolist() == [2.0]


def test_a_pair_is_drawn_together_while_it_follows_its_mean_gradient():
    slow, gradients = [f32(1.0), f32(3.0)], [f32(0.5), f32(1.5)]
    update, buffer = gossip_step(slow[0], slow, gradients, f32(4.0), learning_rate=0.5, momentum=0.25)
    # b = 0.25 * 4 + 0.5 (1 + (1 - 2)) and 0 + 0.5 (1 + (3 - 2))
    assert (update.tolist(), buffer.tolist(), update.dtype) == ([1.0], [1.0], np.float32)
    update, _ = gossip_step(slow[1], slow, gradients, f32(0.0), learning_rate=0.5, momentum=0.25)
    assert update.tolist() == [1.0]


def test_one_without_a_partner_follows_its_own_gradient():
    update, buffer = gossip_step(f32(7.0), [f32(7.0)], [f32(2.0)], f32(4.0), learning_rate=0.5, momentum=0.25)
    assert (update.tolist(), buffer.tolist()) == ([2.0], [2.0])


def test_without_momentum_and_at_rate_one_both_of_a_pair_get_the_mean_of_what_they_trained():
    slow, trained = [f32(1.0), f32(3.0)], [f32(5.0), f32(2.0)]
    gradients = [own - after for own, after in zip(slow, trained, strict=True)]
    for own in slow:
        assert (own - gossip_step(own, slow, gradients, f32(0.0), 1.0, 0.0)[0]).tolist() == [3.5]


def test_pairs_are_those_of_the_round_and_of_who_is_there_and_of_nothing_else():
    assert [draw_pairs([0, 1, 2], 0, number) for number in (1, 2, 3)] == [
        [(0, 1), (2,)], [(0, 1), (2,)], [(0, 2), (1,)]
    ]  # fmt: skip
    assert draw_pairs([2, 0, 1], 0, 3) == draw_pairs([0, 1, 2], 0, 3) != draw_pairs([0, 1, 2], 1, 3)
    assert draw_pairs([], 0, 1) == [] and draw_pairs([4], 0, 1) == [(4,)]
    # Over many rounds every pair of six comes as often: 600 * 1 / 5.
    found = [tuple(pair) for number in range(600) for pair in draw_pairs(range(6), 0, number)]
    counts = [found.count((one, other)) for other in range(6) for one in range(other)]
    assert sum(counts) == len(found) == 1800
    assert min(counts) > 85 and max(counts) < 155


@pytest.mark.parametrize(
    ("members", "momentum", "limit"), [(2, 0.0, 2.0), (2, 0.5, 3.0), (3, 0.5, 1.5), (4, 0.9, 0.38)]
)
def test_differences_between_members_die_out_below_the_largest_rate(members, momentum, limit):
    assert largest_rate(members, momentum) == pytest.approx(limit)
    rng = np.random.default_rng(0)
    start = rng.normal(0, 1, (members, 400)).astype(np.float32)

    def spread_after(rate, rounds=60):
        weights, buffers = list(start), list(np.zeros_like(start))
        for number in range(rounds):
            for pair in draw_pairs(range(members), 0, number):
                slow = [weights[one] for one in pair]
                for one, own in zip(pair, slow, strict=True):
                    update, buffers[one] = gossip_step(
                        own, slow, [np.zeros_like(own) for _ in pair], buffers[one], rate, momentum
                    )
                    weights[one] = own - update
        return np.std(weights, axis=0).mean() / np.std(start, axis=0).mean()

    assert spread_after(0.7 * limit) < 0.5
    if members == 2:
        assert spread_after(1.05 * limit) > 2


def test_fragments_are_consecutive_about_equal_and_never_empty():
    assert split_fragments({"a": 10, "b": 10, "c": 10, "d": 10}, 2) == [["a", "b"], ["c", "d"]]
    assert split_fragments({"a": 100, "b": 10, "c": 10}, 2) == [["a"], ["b", "c"]]
    assert split_fragments({"a": 10, "b": 10, "c": 100}, 2) == [["a", "b"], ["c"]]
    assert split_fragments({"a": 1, "b": 1, "c": 100}, 3) == [["a"], ["b"], ["c"]]
    assert split_fragments({"a": 1, "b": 2}, 1) == [["a", "b"]]
    with pytest.raises(ValueError, match="1 parameters cannot be divided into 2 fragments"):
        split_fragments({"a": 1}, 2)


def test_each_fragment_is_due_every_h_steps_and_no_two_together():
    assert [due_fragments(step, every=4, count=2) for step in range(9)] == [
        [], [], [1], [], [0], [], [1], [], [0]
    ]  # fmt: skip
    assert [step for step in range(10) if due_fragments(step, every=3, count=1)] == [3, 6, 9]
    assert [due_fragments(step, every=3, count=3) for step in range(1, 4)] == [[1], [2], [0]]


def test_values_are_rounded_to_multiples_of_their_blocks_scale():
    codes, scales = quantize(f32(127.0, -63.4, 0.6, 0.0), 8)
    assert (codes.dtype, codes.tolist(), scales.tolist()) == (np.int8, [127, -63, 1, 0], [1.0])
    assert dequantize(codes, scales, 8, 4).tolist() == [127.0, -63.0, 1.0, 0.0]


def test_four_bits_pack_two_values_into_a_byte():
    codes, scales = quantize(f32(7.0, -7.0, 3.2), 4)
    # -7 + 8 = 1 in the upper half, 7 + 8 = 15 in the lower; 3 + 8 = 11 alone.
    assert (codes.dtype, codes.tolist(), scales.tolist()) == (np.uint8, [0x1F, 0x0B], [1.0])
    assert dequantize(codes, scales, 4, 3).tolist() == [7.0, -7.0, 3.0]
    assert code_shape(3, 4) == codes.shape


def test_each_block_has_a_scale_of_its_own_and_zeros_stay_zero():
    values = np.concatenate([np.full(BLOCK, 1000.0), np.full(BLOCK, 0.001), np.zeros(1)]).astype(np.float32)
    codes, scales = quantize(values, 8)
    assert len(scales) == 3
    np.testing.assert_allclose(dequantize(codes, scales, 8, len(values)), values, rtol=1e-6)


def test_what_a_member_keeps_of_its_own_weights():
    local, sent, merged = {"w": f32(3.0)}, {"w": f32(2.0)}, {"w": f32(10.0)}
    assert mixed(local, merged, 0.0)["w"].tolist() == [10.0]
    # 0.25 * 3 + 0.75 * 10
    assert mixed(local, merged, 0.25)["w"].tolist() == [8.25]
    # One step of 1.0 since it contributed.
    assert carried_over(local, sent, merged)["w"].tolist() == [11.0]
