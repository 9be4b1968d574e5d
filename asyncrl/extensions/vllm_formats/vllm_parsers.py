"""vLLM's tool-call and reasoning parsers, by name. Nothing is imported from vLLM before one is loaded.

vLLM hands a turn with a malformed call on as plain text, or completes a call that was cut off. For the formats in
`MARKS` such calls are found by the markers around them and described in an error instead, as for our own formats.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import itertools
import json
import logging
import re
from pathlib import Path
from typing import Any

from asyncrl.chat.tool_calls import Malformed, Tools, TurnParser, collect, decode_json
from asyncrl.chat.tool_formats import SplitReasoning
from asyncrl.env.protocol import Action
from asyncrl.errors import ConfigError

_REGISTERS = {
    "tool_format": ("tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
    "reasoning_format": ("reasoning", "_REASONING_PARSERS_TO_REGISTER"),
}
_STUBS = ("openai", "openai_gptoss", "hf")
"""They read token ids, or a description that the tokenizer must bring; "harmony" stands for the first two."""
_XML_CALL = (r"<function=|<tool_call>(?!\s*<function=)", r"</function>")
_TAG_CALL = (r"<tool_call>", r"</tool_call>")
_DEEPSEEK_CALL = (r"<｜tool▁call▁begin｜>", r"<｜tool▁call▁end｜>")
_DSML_CALL = (r"<｜DSML｜invoke\b", r"</｜DSML｜invoke>")
_PYTHON_CALL = (r"\A\s*(?:<\|python_start\|>)?\s*\[\s*[\w.]+\(", r"\]\s*(?:<\|python_end\|>)?\s*\Z")
MARKS = {
    "qwen3_coder": _XML_CALL,
    "qwen3_xml": _XML_CALL,
    "qwen3_json": _TAG_CALL,
    "glm45": _TAG_CALL,
    "glm47": _TAG_CALL,
    "deepseek_v3": _DEEPSEEK_CALL,
    "deepseek_v31": _DEEPSEEK_CALL,
    "deepseek_v32": _DSML_CALL,
    "deepseek_v4": _DSML_CALL,
    "kimi_k2": (r"<\|tool_call_begin\|>", r"<\|tool_call_end\|>"),
    "minimax_m2": (r"<invoke name=", r"</invoke>"),
    "llama4_pythonic": _PYTHON_CALL,
    "pythonic": _PYTHON_CALL,
    "llama3_json": (r"\A\s*(?:<\|python_tag\|>)?\s*\{", r"\}\s*\Z"),
    "llama4_json": (r"\A\s*(?:<\|python_tag\|>)?\s*\{", r"\}\s*\Z"),
}
"""What opens and what closes a call, as regular expressions. The last four formats have one pair around all calls."""


@functools.cache
def known_names(key: str) -> tuple[str, ...]:
    """Return the names of vLLM's parsers that `model.tool_format` or `model.reasoning_format` may have.

    They are read from the source of the installed vLLM, which is not imported; () where there is none.
    """
    package, register = _REGISTERS[key]
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        return ()
    source = Path(spec.origin).parent / package / "__init__.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == register and isinstance(value, ast.Dict):
            names = [item.value for item in value.keys if isinstance(item, ast.Constant)]
            return tuple(sorted(str(name) for name in names if name not in _STUBS))
    return ()


class VllmFormats:
    """Implements `tool_formats.FormatLibrary`."""

    owner = "vLLM"

    def names(self, key: str) -> tuple[str, ...]:
        """See `FormatLibrary`."""
        return known_names(key)

    def tool_parser(self, name: str, tokenizer: Any) -> TurnParser:
        """See `FormatLibrary`."""
        return _ToolParser(name, tokenizer)

    def reasoning_parser(self, name: str, tokenizer: Any) -> SplitReasoning:
        """See `FormatLibrary`."""
        return _ReasoningParser(name, tokenizer)


class _ToolParser:
    """Implements `tool_calls.TurnParser`."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        from vllm.tokenizers.hf import get_cached_tokenizer

        self.name = name
        # vLLM's parsers look tokens up in the vocabulary, which a plain tokenizer builds anew each time.
        self._tokenizer = get_cached_tokenizer(tokenizer)
        self._class = _get_parser("tool_format", name, self._tokenizer)
        self._opening, self._closing = (re.compile(p) for p in MARKS.get(name, (r"(?!)", r"(?!)")))
        self._requests: dict[str, Any] = {}

    def __call__(self, text: str, tools: Tools = (), /) -> Action:
        """Read a turn; without tools it is plain text."""
        if not tools:
            return Action(text.strip())
        request = self._request(tools)
        text, complete, wrong = self._whole_calls(text)
        try:
            parser = self._class(self._tokenizer, request.tools)
            _, content, found = parser.parse(text, request, enable_auto_tools=True)
        except Exception as error:
            # Each of vLLM's parsers raises what it likes on text that no template has written.
            return Action(text.strip(), (), (f"malformed tool call: {type(error).__name__}: {error}"[:300],))
        found = found or []
        if len(found) == len(complete):
            found = [call for call, whole in zip(found, complete, strict=True) if whole]
        elif len(found) < len(complete) and not wrong:
            wrong = ["the call could not be read"] * (len(complete) - len(found))
        values = [
            {"name": call.name, "arguments": decode_json(call.arguments) if call.arguments else {}}
            for call in found
        ]
        ids = [_own_id(call, text) for call in found]
        return collect(content or "", [*values, *map(Malformed, wrong)], ids)

    def _whole_calls(self, text: str) -> tuple[str, list[bool], list[str]]:
        """Find the calls that are opened but not closed before the next one.

        Returns the text up to the last whole call where it ends with others, since vLLM would complete them, whether
        each call in it is whole, and an error for each that is not.
        """
        opened = list(self._opening.finditer(text))
        whole = []
        for match, following in itertools.zip_longest(opened, opened[1:]):
            end = following.start() if following else len(text)
            whole.append(self._closing.search(text, match.end(), end) is not None)
        wrong = ["the call is not complete" for one in whole if not one]
        end = len(text)
        while whole and not whole[-1]:
            whole.pop()
            end = opened.pop().start()
        return text[:end], whole, wrong

    def _request(self, tools: Tools) -> Any:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        key = json.dumps(tools, sort_keys=True, default=repr)
        if key not in self._requests:
            if len(self._requests) >= 64:
                self._requests.clear()
            self._requests[key] = ChatCompletionRequest(messages=_ASKED, tools=[dict(tool) for tool in tools])
        return self._requests[key]


class _ReasoningParser:
    """Implements `tool_formats.SplitReasoning`."""

    def __init__(self, name: str, tokenizer: Any) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.tokenizers.hf import get_cached_tokenizer

        self._tokenizer = get_cached_tokenizer(tokenizer)
        self._class = _get_parser("reasoning_format", name, self._tokenizer)
        self._request = ChatCompletionRequest(messages=_ASKED)

    def __call__(self, text: str) -> tuple[str, str]:
        try:
            reasoning, rest = self._class(self._tokenizer).extract_reasoning(text, self._request)
        except Exception:
            # As for tool calls: text that cannot be split is all content.
            return "", text
        return reasoning or "", rest or ""


_ASKED: Any = [{"role": "user", "content": "?"}]


def _get_parser(key: str, name: str, tokenizer: Any) -> Any:
    """Return vLLM's parser class, tried on the tokenizer. Raises `ConfigError` saying what the tokenizer lacks."""
    from vllm.parser.parser_manager import ParserManager

    # What they find wrong in a model's turn is described in its action; a log line each would fill the disk.
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    try:
        return ParserManager.get_parser(
            tool_parser_name=name if key == "tool_format" else None,
            reasoning_parser_name=name if key == "reasoning_format" else None,
            enable_auto_tools=True,
            tokenizer=tokenizer,
        )
    except Exception as error:
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ConfigError(f"model.{key}: {name!r} does not suit the model's tokenizer: {reason}") from error


def _own_id(call: Any, text: str) -> str:
    """Return the id that the model wrote itself, as Kimi-K2 does; "" for one that vLLM has made up."""
    return call.id if call.id and call.id in text else ""
