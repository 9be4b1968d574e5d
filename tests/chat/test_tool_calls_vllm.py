"""Tool calls against vLLM's own parsers, on generated turns of each model family."""

import json
import random
import string

import pytest

from asyncrl.chat.tool_calls import parse_hermes, parse_llama, parse_mistral

CASES = 400
PARSERS = {"hermes": parse_hermes, "llama": parse_llama, "mistral": parse_mistral}
VLLM_NAMES = {"hermes": "hermes", "llama": "llama3_json", "mistral": "mistral"}


class Vocabulary:
    """The part of a tokenizer that vLLM's parsers look at before they read text."""

    def __init__(self, *tokens):
        self.tokens = {token: number for number, token in enumerate(tokens)}

    def get_vocab(self):
        return self.tokens

    def encode(self, text, **options):
        return [self.tokens.get(text, 0)]


@pytest.fixture(scope="module")
def vllm_parse():
    """A function (family, text, newer) -> (content, [(name, arguments)]) by vLLM."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "?"}])
    common = ("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]")
    vocabularies = {False: Vocabulary(*common), True: Vocabulary(*common, "[ARGS]")}

    def parse(family, text, newer=False):
        parser = ToolParserManager.get_tool_parser(VLLM_NAMES[family])(vocabularies[newer])
        found = parser.extract_tool_calls(text, request)
        calls = [(c.function.name, json.loads(c.function.arguments)) for c in found.tool_calls]
        return (found.content or "").strip(), calls

    return parse


def words(rng, low=1, high=4):
    letters = string.ascii_letters + "äß漢 \n'\\/<>:,;[]{}\""
    return "".join(rng.choice(letters) for _ in range(rng.randint(low, high)))


def value(rng, depth=2):
    kinds = ["text", "number", "flag", "none"] + (["list", "map"] if depth else [])
    kind = rng.choice(kinds)
    if kind == "list":
        return [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == "map":
        return {words(rng): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return {
        "text": words(rng, 0, 8),
        "number": rng.choice([rng.randint(-(10**9), 10**9), round(rng.uniform(-5, 5), 3)]),
        "flag": rng.random() < 0.5,
        "none": None,
    }[kind]


def draw_calls(rng):
    names = ["search", "calc", "open_file", "a-b", "f1"]
    arguments = [{words(rng): value(rng) for _ in range(rng.randint(0, 3))} for _ in range(rng.randint(1, 3))]
    return [(rng.choice(names), one) for one in arguments]


def dump(rng, body):
    options = [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]
    return json.dumps(body, **rng.choice(options))


def render(rng, family, calls):
    """One turn as a model of the family writes it, and whether it is in Mistral's newer form."""
    space = rng.choice(["", "\n", " "])
    if family == "hermes":
        text = "".join(
            f"<tool_call>{space}{dump(rng, {'name': n, 'arguments': a})}{space}</tool_call>{space}"
            for n, a in calls
        )
        return rng.choice(["", "Let me see.\n", "<think>\nhm\n</think>\n\n"]) + text, False
    if family == "llama":
        key = rng.choice(["parameters", "arguments"])
        joined = "; ".join(dump(rng, {"name": n, key: a}) for n, a in calls)
        return rng.choice(["", "<|python_tag|>"]) + joined, False
    if rng.random() < 0.5:
        body = dump(rng, [{"name": n, "arguments": a} for n, a in calls])
        return f"[TOOL_CALLS]{space}{body}", False
    return "".join(f"[TOOL_CALLS]{n}{dump(rng, a)}" for n, a in calls), True


def damage(rng, text):
    """Cut the turn somewhere, or lose, double or replace a character."""
    at = rng.randrange(len(text))
    return rng.choice(
        [
            text[:at],
            text[:at] + text[at + 1 :],
            text[:at] + text[at] + text[at:],
            text[:at] + "\x00" + text[at + 1 :],
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", list(PARSERS))
def test_well_formed_turns_parse_as_vllm_parses_them(family, vllm_parse):
    rng = random.Random(f"well-formed {family}")
    for _ in range(CASES):
        calls = draw_calls(rng)
        text, newer = render(rng, family, calls)
        action = PARSERS[family](text)
        ours = (action.content, [(c.name, c.arguments) for c in action.tool_calls])
        assert action.parse_errors == ()
        assert ours[1] == calls, text
        assert ours == vllm_parse(family, text, newer), text


@pytest.mark.slow
@pytest.mark.parametrize("family", list(PARSERS))
def test_damaged_turns_never_raise_and_lose_no_call_that_vllm_finds(family, vllm_parse):
    rng = random.Random(f"damaged {family}")
    told = 0
    for _ in range(CASES):
        whole, newer = render(rng, family, draw_calls(rng))
        text = damage(rng, whole)
        action = PARSERS[family](text)
        ours = [(c.name, c.arguments) for c in action.tool_calls]
        try:
            _, theirs = vllm_parse(family, text, newer)
        except (ValueError, KeyError, TypeError):
            theirs = []
        objects = [(n, a) for n, a in theirs if n and isinstance(a, dict)]
        assert ours == objects or action.parse_errors or len(ours) > len(objects), text
        told += bool(action.parse_errors)
    assert told > CASES // 5
