"""What becomes of a weight file's tensors before a worker's model loads them: a table of conversions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from asyncrl.extensions.table import rows
from asyncrl.import_path import load_object

Tensors = Iterator[tuple[str, torch.Tensor]]


class Conversion(NamedTuple):
    """One that some models need."""

    asked: Callable[[Any], bool]
    """Whether it is needed for a model, by vLLM's configuration of it."""
    convert: str
    """The import path of a function of named tensors and the worker's device to named tensors."""


CONVERSIONS = (
    Conversion(
        lambda model: model.hf_text_config.model_type == "gpt_oss",
        "asyncrl.weights.vllm_direct_writes:split_experts",
    ),
)
"""In the order in which they are applied, after those of extensions, whose rows say which engines need them."""


def converted(tensors: Tensors, model_config: Any, device: torch.device) -> Tensors:
    """Yield the tensors as the model's loader takes them."""
    for row in rows("weight_conversions"):
        if row.wanted(os.environ):
            tensors = row.load()(tensors, device)
    for one in CONVERSIONS:
        if one.asked(model_config):
            tensors = load_object("engine", one.convert)(tensors, device)
    return tensors
