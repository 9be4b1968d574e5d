"""Requests of a user to fulfil by calls, in the fields of BFCL's multi-turn tasks with `ground_truth` in one record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.benchmarks.importers.records import Imported, text

ENV = "asyncrl.envs.benchmarks.multi_turn_calls:MultiTurnCalls"
EXPECTED = (
    "id, question (of each turn a list of messages), initial_config, involved_classes and ground_truth (of each turn "
    "a list of calls as text)"
)


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    question, answers, classes = record["question"], record["ground_truth"], record["involved_classes"]
    if not _lists_of(question, dict):
        raise TypeError(f"question: must be a list of lists of messages, got {question!r:.80}")
    if not _lists_of(answers, str):
        raise TypeError(f"ground_truth: must be a list of lists of calls, got {answers!r:.80}")
    if len(question) != len(answers):
        raise ValueError(f"ground_truth: has {len(answers)} turns for {len(question)} of the question")
    if not isinstance(classes, list) or not classes or not all(isinstance(one, str) for one in classes):
        raise TypeError(f"involved_classes: must be a list of names, got {classes!r:.80}")
    if not isinstance(record["initial_config"], dict):
        raise TypeError(f"initial_config: must be an object, got {record['initial_config']!r:.80}")
    missed = record.get("missed_function") or {}
    for turn, messages in enumerate(question):
        if not messages and str(turn) not in missed:
            raise ValueError(f"question: turn {turn} says nothing, and missed_function names none for it")
    task_id = text(record, "id")
    data = {
        "question": question,
        "initial_config": record["initial_config"],
        "involved_classes": classes,
        "ground_truth": answers,
        "missed_function": missed,
        "tags": [task_id.removeprefix("multi_turn_").rpartition("_")[0] or "multi_turn"],
    }
    return Imported(task_id, data)


def _lists_of(value: Any, kind: type) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, list) and all(isinstance(item, kind) for item in one) for one in value)
    )
