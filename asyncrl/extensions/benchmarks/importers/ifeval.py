"""Instructions that can be checked, in the fields of IFEval: `prompt`, `instruction_id_list` and `kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncrl.extensions.benchmarks.importers.records import Imported, text

ENV = "asyncrl.envs.benchmarks.instructions:Instructions"
EXPECTED = "prompt, instruction_id_list (such as ['punctuation:no_comma']) and kwargs, an object for each instruction"


def read(record: Mapping[str, Any]) -> Imported:
    """See `Importer.read`."""
    ids, kwargs = record["instruction_id_list"], record["kwargs"]
    if not isinstance(ids, list) or not ids or not all(isinstance(one, str) and ":" in one for one in ids):
        raise TypeError(f"instruction_id_list: must be a list of names, got {ids!r:.80}")
    if not isinstance(kwargs, list) or not all(isinstance(one, dict) for one in kwargs):
        raise TypeError(f"kwargs: must be a list of objects, got {kwargs!r:.80}")
    if len(kwargs) != len(ids):
        raise ValueError(f"kwargs: there are {len(kwargs)} for {len(ids)} instructions")
    data = {
        "prompt": text(record, "prompt"),
        "instruction_id_list": ids,
        "kwargs": kwargs,
        "tags": list(dict.fromkeys(one.partition(":")[0] for one in ids)),
    }
    return Imported(str(record.get("key", "")), data)
