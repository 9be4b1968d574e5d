"""How a user's reward function wants to be called, told by the names of its parameters alone.

| parameters | is called |
|---|---|
| `completions`, any columns | as TRL does: once for all, lists of equal length; returns a list |
| `solution_str`, `ground_truth`, `data_source`, `extra_info` | as verl does; with an "s" added to each, for all |
| `completion`, `state`, `info`, `task`, `parser`, ... | as verifiers does its rubrics' functions |
| `completion`, `answer`, `row`, any columns | for one answer, the completion as text |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncrl.rewards.final_answers import final_answers
from asyncrl.rewards.published import published_answer

SAID = ("completion", "response", "output", "text", "prediction", "generation", "model_output")
"""Parameters that get what the policy wrote, unless a column has the name; `completion` always."""
RUBRIC = ("state", "info", "task", "parser")
"""Parameters by which a function of verifiers is known."""
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
GIVEN = ("completion", "completions", "prompt", "prompts", "row", "reasoning", "answer", *RUBRIC)
Item = Mapping[str, Any]
"""A completion as it crosses to the function's process: `prompt`, `text`, `reasoning`, `row`."""


class Parser:
    """What functions of verifiers ask of their parser, by the extraction of this project."""

    def parse(self, text: str) -> str | None:
        """Return the final answer of a text."""
        return final_answers().extract(text)

    def parse_answer(self, completion: Any) -> str | None:
        """Return the final answer of a conversation's last message, or of a text."""
        text = completion if isinstance(completion, str) else str(completion[-1]["content"])
        return final_answers().extract(text)


class Signature:
    """The parameters of a function. Raises `TypeError` for one that no call fits."""

    def __init__(self, function: Callable[..., Any]) -> None:
        found = inspect.signature(function)
        self.names = [
            name
            for name, one in found.parameters.items()
            if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        self.takes_all = any(one.kind is one.VAR_KEYWORD for one in found.parameters.values())
        self.required = [
            name
            for name, one in found.parameters.items()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
        if any(one.kind is one.POSITIONAL_ONLY for one in found.parameters.values()):
            raise TypeError("its parameters must have names: asyncrl passes them by name")
        known = {*SAID, "completions", "solution_str", "solution_strs", "state", "row"}
        if not known & {*self.names} and not self.takes_all:
            raise TypeError(
                f"takes ({', '.join(self.names)}), none of which gets what the policy wrote; name one of its "
                "parameters completion (one answer as text), completions (a batch, as in TRL) or solution_str (one, as "
                "in verl)"
            )
        annotation = found.parameters["completion"].annotation if "completion" in found.parameters else None
        self.wants_messages = (
            bool({*RUBRIC} & {*self.names})
            or "list" in str(annotation).lower()
            or "Messages" in str(annotation)
        )
        self.is_batch = "completions" in self.names or "solution_strs" in self.names

    def missing(self, row: Item) -> str | None:
        """Return why the function cannot be called for a row: a parameter that is no column; else None."""
        for name in self.required:
            singular = name.removesuffix("s") if self.is_batch else name
            if name in row or name in GIVEN or name in SAID or singular in VERL:
                continue
            if self.is_batch and name in ("completion_ids", "trainer_state", "log_extra", "log_metric"):
                continue
            return f"its parameter {name!r} is no column; the row has {', '.join(map(str, row)) or 'none'}"
        return None

    def arguments(self, items: Sequence[Item]) -> dict[str, Any]:
        """Return the arguments of one call: for all items of a batch, or for the only one."""
        if "solution_strs" in self.names:
            return {
                name + "s": [self._verl(item)[name] for item in items]
                for name in VERL
                if name + "s" in self.names
            }
        if self.is_batch:
            return self._trl(items)
        (item,) = items
        if "solution_str" in self.names:
            given = self._verl(item)
            return given if self.takes_all else {name: given[name] for name in VERL if name in self.names}
        return self._one(item)

    def _one(self, item: Item) -> dict[str, Any]:
        row = item["row"]
        completion: Any = (
            [{"role": "assistant", "content": item["text"]}] if self.wants_messages else item["text"]
        )
        given: dict[str, Any] = {
            **row,
            "completion": completion,
            "prompt": item["prompt"],
            "row": row,
            "reasoning": item["reasoning"],
            "answer": _answer(row),
        }
        for name in SAID:
            given.setdefault(name, completion)
        if self.wants_messages:
            task, info = row.get("task", "default"), row.get("info", {})
            state = {key: given[key] for key in ("prompt", "completion", "answer")}
            state |= {"task": task, "info": info, "turn": 1, "responses": []}
            given.update(task=task, info=info, state=state, parser=Parser())
        return given if self.takes_all else {name: given[name] for name in self.names if name in given}

    def _trl(self, items: Sequence[Item]) -> dict[str, Any]:
        """Return the batch as TRL passes it: messages where the row's own prompt is messages, else texts."""
        in_messages = isinstance(items[0]["row"].get("prompt", ""), list)
        columns = dict.fromkeys(name for item in items for name in item["row"])
        given: dict[str, Any] = {name: [item["row"].get(name) for item in items] for name in columns}
        given["completions"] = [
            [{"role": "assistant", "content": item["text"]}] if in_messages else item["text"]
            for item in items
        ]
        given["prompts"] = [item["row"].get("prompt", item["prompt"]) for item in items]
        if "answer" in self.names and "answer" not in given:
            given["answer"] = [_answer(item["row"]) for item in items]
        return given if self.takes_all else {name: given[name] for name in self.names if name in given}

    def _verl(self, item: Item) -> dict[str, Any]:
        row = item["row"]
        model = row.get("reward_model")
        truth = model.get("ground_truth") if isinstance(model, Mapping) else None
        return {
            "data_source": row.get("data_source", ""),
            "solution_str": item["text"],
            "ground_truth": truth if truth is not None else _answer(row),
            "extra_info": row.get("extra_info", {}),
        }


def _answer(row: Item) -> Any:
    try:
        return published_answer(row)
    except KeyError:
        return None
