"""A GGUF file as a Hugging Face folder: the form that engines, trainers and tokenizers here read.

transformers reads such a file and dequantises it, but refuses to save what it read. The weights are put into a fresh
model of the same configuration, which saves.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils.logging import disable_progress_bar

from asyncrl.errors import InputError

NOT_OF_THE_MODEL = ("quantization_config", "_model_name_or_path", "transformers_version")
"""Keys of a configuration that describe the file it was read from."""


def convert(file: Path, folder: Path, dtype: str = "float32") -> Path:
    """Write the model, tokenizer and chat template of a GGUF file into `folder`, which appears whole or not at all.

    Raises `InputError` where transformers cannot read the file.
    """
    disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
        read: Any = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=getattr(torch, dtype)
        )
    except (OSError, ValueError, RuntimeError, KeyError, NotImplementedError) as error:
        raise InputError(f"{file}: transformers cannot read this GGUF file: {error}") from error
    partial = folder.with_name(f"{folder.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    _unquantized(read).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(folder, ignore_errors=True)
    partial.replace(folder)
    return folder


def _unquantized(read: Any) -> Any:
    """Return a model with the weights of `read` that may be saved."""
    values = {key: value for key, value in read.config.to_dict().items() if key not in NOT_OF_THE_MODEL}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=read.dtype)
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    if config.eos_token_id is not None:
        model.generation_config = GenerationConfig(
            eos_token_id=config.eos_token_id, bos_token_id=config.bos_token_id
        )
    return model
