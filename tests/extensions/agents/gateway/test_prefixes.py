"""What follows a recorded turn, whichever stop token ended it."""

import numpy as np
import pytest

from asyncrl.chat.renderer import ChatRenderer
from asyncrl.extensions.agents.gateway.chat_history import read_chat_history
from asyncrl.extensions.agents.gateway.prefixes import _rest
from asyncrl.extensions.agents.gateway.tree import Call
from asyncrl.generation import Generated

USER = {"role": "user", "content": "goal"}


@pytest.mark.parametrize(("ended_by", "appended"), [("first", 0), ("second", 0), ("nothing", 1)])
def test_an_end_of_turn_is_appended_to_turns_that_did_not_end_themselves_alone(renderer, ended_by, appended):
    other = renderer.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    known = ChatRenderer(renderer.tokenizer, [other])
    end = {"first": [known.stop_token_ids[0]], "second": [other], "nothing": []}[ended_by]
    ids = np.asarray([*renderer.tokenizer.encode("42"), *end], np.int32)
    turn = Generated(ids, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32), "stop")
    conversation = read_chat_history([USER, {"role": "assistant", "content": "42"}, USER], None)
    rest = _rest(known, Call("a", None, np.empty(0, np.int32), turn, b""), conversation, 2)
    assert rest.ids.tolist() == [*known.stop_token_ids[:appended], *known.observation([USER], []).tolist()]
