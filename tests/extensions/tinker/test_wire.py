"""Bytes of the SDK become rows, and answers its bytes; what cannot be read is refused by its place."""

import numpy as np
import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.tinker.wire import (
    CLASSES,
    FLOAT32,
    Sampled,
    forward_backward_output,
    read_request,
    request_head,
    sample_response,
)
from tests.extensions.tinker.form import forward_backward, read_output

ROW = ([5, 6], {"target_tokens": [6, 7], "weights": [0.0, 1.0]})


def changed(**fields):
    """Return a request with one row whose first array is changed."""
    message = CLASSES["ForwardBackwardRequest"]()
    message.ParseFromString(forward_backward("p", 1, [ROW]))
    array = message.data[0].loss_fn_inputs[1].value
    for name, value in fields.items():
        if name == "shape":
            del array.shape[:]
            array.shape.extend(value)
        else:
            setattr(array, name, value)
    return message.SerializeToString()


def test_a_request_is_read_with_its_rows_and_its_settings():
    body = forward_backward("s:train:0", 3, [ROW], "ppo", True, clip_low_threshold=0.9, note="x")
    request = read_request(body)
    assert request_head(body) == ("s:train:0", 3)
    assert (request.loss, request.forward_only) == ("ppo", True)
    assert request.settings == {"clip_low_threshold": 0.9, "note": "x"}
    (row,) = request.data
    assert row.tokens.tolist() == [5, 6]
    assert {name: one.values.tolist() for name, one in row.inputs.items()} == {
        "target_tokens": [6, 7],
        "weights": [0.0, 1.0],
    }


def test_settings_of_the_older_form_are_read_too():
    message = CLASSES["ForwardBackwardRequest"](model_id="p", seq_id=1, loss_fn="dro")
    message.loss_fn_config.add(key="beta", value=0.5)
    assert read_request(message.SerializeToString()).settings == {"beta": 0.5}


def test_a_sparse_array_keeps_its_rows_and_columns():
    message = CLASSES["ForwardBackwardRequest"]()
    message.ParseFromString(forward_backward("p", 1, [ROW]))
    array = message.data[0].loss_fn_inputs[1].value
    array.ClearField("dense")
    array.sparse_csr.values = np.asarray([2.0, 3.0], "<f4").tobytes()
    array.sparse_csr.crow_indices = np.asarray([0, 0, 2], "<i8").tobytes()
    array.sparse_csr.col_indices = np.asarray([1, 4], "<i8").tobytes()
    del array.shape[:]
    array.shape.extend([2, 5])
    (row,) = read_request(message.SerializeToString()).data
    found = row.inputs["weights"]
    assert (found.values.tolist(), found.rows.tolist(), found.columns.tolist()) == (
        [2.0, 3.0],
        [1, 1],
        [1, 4],
    )


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"shape": [3]}, r"data\[0\]\.weights: 2 items do not have the shape \[3\]"),
        ({"shape": [-1, -2]}, r"data\[0\]\.weights: 2 items do not have the shape"),
        ({"dtype": 4}, r"data\[0\]\.weights: unknown type of items 4; there are \[1, 2, 3\]"),
        ({"dense": b"123"}, r"data\[0\]\.weights: 3 bytes are no whole items"),
    ],
)
def test_an_array_that_cannot_be_read_is_refused_by_its_name(fields, why):
    with pytest.raises(InputError, match=why):
        read_request(changed(**fields))


def test_a_sparse_array_whose_columns_are_outside_is_refused():
    message = CLASSES["Tensor"](dtype=FLOAT32)
    message.shape.extend([1, 2])
    message.sparse_csr.values = np.ones(1, "<f4").tobytes()
    message.sparse_csr.crow_indices = np.asarray([0, 1], "<i8").tobytes()
    message.sparse_csr.col_indices = np.asarray([2], "<i8").tobytes()
    request = CLASSES["ForwardBackwardRequest"]()
    request.data.add().loss_fn_inputs.add(key="weights").value.CopyFrom(message)
    with pytest.raises(InputError, match=r"its rows and columns are not those of 1 items of \[1, 2\]"):
        read_request(request.SerializeToString())


def test_an_image_is_refused_and_so_are_other_bytes():
    message = CLASSES["ForwardBackwardRequest"]()
    message.data.add().model_input.add().image = b"png"
    with pytest.raises(InputError, match=r"data\[0\]\.model_input: holds an image or audio"):
        read_request(message.SerializeToString())
    for read in (request_head, read_request):
        with pytest.raises(InputError, match="4 bytes that are no ForwardBackwardRequest"):
            read(b"\xff\xff\xff\xff")


def test_a_requests_rows_are_not_read_for_its_head():
    head = forward_backward("s:train:0", 300, [ROW], "dro", True, beta=0.5)
    # Of fields that it does not know it passes over numbers of 4 and 8 bytes, too.
    assert request_head(head + b"\x55abcd" + b"\x51abcdefgh") == ("s:train:0", 300)
    for wrong in (head[:-1], head + b"\x0b", head + b"\x55ab", b"\x0a\x01\xff", b"\x10" + b"\x80" * 20):
        with pytest.raises(InputError, match="bytes that are no ForwardBackwardRequest"):
            request_head(wrong)
    damaged = forward_backward("s:train:0", 3, []) + b"\x1a\x02\xff\xff"
    assert request_head(damaged) == ("s:train:0", 3)
    with pytest.raises(InputError, match="bytes that are no ForwardBackwardRequest"):
        read_request(damaged)


def test_answers_of_unlike_shapes_come_in_records_of_their_own_in_their_order():
    rows = [np.asarray([1.0, 2.0]), np.asarray([3.0]), np.asarray([[4.0, 5.0]]), np.asarray([6.0])]
    found, metrics = read_output(forward_backward_output(rows, {"loss:sum": 7.0}))
    assert [one.tolist() for one in found] == [[1.0, 2.0], [3.0], [[4.0, 5.0]], [6.0]]
    assert metrics == {"loss:sum": 7.0}


def test_samples_have_their_log_probabilities_and_the_likeliest_of_each_token():
    one = Sampled(np.asarray([3, 4]), np.asarray([-1.0, -2.0]), "length", ({3: -1.0, 9: -0.5}, {4: -2.0}))
    prompt = np.asarray([np.nan, -0.25])
    body = sample_response([one], prompt, ({}, {8: -0.25}), 2, 1, cached_tokens=1)
    message = CLASSES["SampleResponse"]()
    message.ParseFromString(body)
    (sequence,) = message.sequences
    assert sequence.stop_reason == 1 and message.prompt_cache_hit_tokens == 1
    assert np.frombuffer(sequence.tokens, "<i4").tolist() == [3, 4]
    assert np.frombuffer(sequence.logprobs, "<f4").tolist() == [-1.0, -2.0]
    likeliest = sequence.topk_sampled_logprobs
    assert (likeliest.k, likeliest.length) == (2, 2)
    assert np.frombuffer(likeliest.token_ids, "<i4").tolist() == [9, 3, 4, 0]
    values = np.frombuffer(likeliest.logprobs, "<f4")
    assert values[:3].tolist() == [-0.5, -1.0, -2.0] and np.isnan(values[3])
    found = np.frombuffer(message.prompt_logprobs, "<f4")
    assert np.isnan(found[0]) and found[1] == -0.25
    assert np.frombuffer(message.topk_prompt_logprobs.token_ids, "<i4").tolist() == [0, 8]
