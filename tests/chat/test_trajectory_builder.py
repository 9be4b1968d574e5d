"""What engines report of an episode's turns: the experts of its tokens, and who computed its prompts."""

from dataclasses import replace

import numpy as np
import pytest

from asyncrl.chat.trajectory_builder import TrajectoryBuilder
from asyncrl.errors import InfrastructureError
from asyncrl.generation import Generated
from asyncrl.services.engine.client import decode_generated
from asyncrl.types import Status, Task


def answer(num_tokens, experts):
    return Generated(
        np.arange(num_tokens, dtype=np.int32),
        np.zeros(num_tokens, np.float32),
        np.zeros(num_tokens, np.int32),
        "stop",
        extras={} if experts is None else {"routed_experts": experts},
    )


def numbered(start, end):
    """Experts [end-start,2,1] that name their token."""
    return np.repeat(np.arange(start, end, dtype=np.uint16), 2).reshape(-1, 2, 1)


def test_each_turn_adds_the_experts_of_what_was_read_since_the_last_one():
    builder = TrajectoryBuilder(Task("t", "e"), 0)
    builder.add_context(np.arange(5, dtype=np.int32))
    assert builder.asked()["routed_experts"] == 0
    builder.add_turn(answer(3, numbered(0, 7)))
    # The last token was sampled and not yet read.
    assert builder.asked()["routed_experts"] == 7
    builder.add_context(np.arange(4, dtype=np.int32))
    builder.add_turn(answer(2, numbered(7, 13)))
    builder.add_context(np.arange(4, dtype=np.int32))
    builder.drop_context()
    finished = builder.finish(Status.FINISHED)
    assert finished.num_tokens == 14
    assert finished.extras["routed_experts"][:, 1, 0].tolist() == list(range(13))


@pytest.mark.parametrize(
    ("of_turns", "found"),
    [(("a", "a"), ("a",)), (("a", "b"), ("a", "b")), (("a", ""), ("a", "")), (("", ""), ()), ((), ())],
)
def test_the_engine_of_each_turn_is_kept_and_told_once_where_it_is_one(of_turns, found):
    builder = TrajectoryBuilder(Task("t", "e"), 0)
    for engine in of_turns:
        builder.add_turn(replace(answer(2, None), engine=engine))
    assert builder.finish(Status.FINISHED).engines == found


def test_a_report_of_other_tokens_is_a_failure_of_the_engine():
    builder = TrajectoryBuilder(Task("t", "e"), 0)
    builder.add_context(np.arange(5, dtype=np.int32))
    with pytest.raises(InfrastructureError, match="the experts of 6 tokens, where it had read 7 new ones"):
        builder.add_turn(answer(3, numbered(0, 6)))


def test_an_engines_answer_holds_them_in_their_shape():
    experts = numbered(300, 304)
    message = {
        "token_ids": b"", "logprobs": b"", "spans": [], "finish_reason": "stop", "cached_tokens": 0,
        "routed_experts": {"dtype": "<u2", "shape": [4, 2, 1], "data": experts.tobytes()},
    }  # fmt: skip
    np.testing.assert_array_equal(decode_generated(message).extras["routed_experts"], experts)
    assert decode_generated(message | {"routed_experts": None}).extras == {}
