"""The norm of gradients is exact however many elements they have, and steps are clipped by it."""

import pytest
import torch

from asyncrl.train.engine.accumulated import MAX_GRAD_NORM, total_norm
from tests.extensions.other_optimizers.test_optimizers import rows
from tests.train.one_step import LEARNING_RATE, make_engine


def test_the_norm_of_a_tensor_of_millions_of_equal_elements_is_exact():
    large = torch.full((2**13, 512), 0.1)
    expected = 0.1 * large.numel() ** 0.5
    assert float(total_norm([large])) == pytest.approx(expected, rel=1e-5)
    assert float(total_norm([large.view(8, 1024, 512), large.T])) == pytest.approx(
        expected * 2**0.5, rel=1e-5
    )


def test_tensors_of_any_shape_count_together():
    shapes = [(), (3,), (2, 3), (2, 2, 2)]
    found = total_norm([torch.full(shape, 2.0) for shape in shapes])
    assert found.dtype == torch.float64
    assert float(found) == pytest.approx((4.0 * (1 + 3 + 6 + 8)) ** 0.5)
    assert float(total_norm([])) == 0.0


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize(("scale", "applied"), [(1e3, MAX_GRAD_NORM), (1e-6, None)])
def test_a_step_gets_gradients_of_at_most_the_greatest_norm(tiny_model, stage, scale, applied):
    engine = make_engine(tiny_model, stage)
    engine.backward(scale * engine.logp(*rows(), 1.0).mean(), True)
    seen = []
    optimizer = getattr(engine.engine.optimizer, "optimizer", engine.engine.optimizer)

    def look(taken, *_):
        seen.append(float(total_norm([p.grad for g in taken.param_groups for p in g["params"]])))

    optimizer.register_step_pre_hook(look)
    norm = engine.step(LEARNING_RATE)
    assert norm > 0
    assert seen == [pytest.approx(norm if applied is None else applied, rel=1e-5)]
