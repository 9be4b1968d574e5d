"""The trained policy as a folder in Hugging Face format, which `transformers` and vLLM load.

A policy with an adapter is written with the adapter merged into its weights, and the adapter in peft's format next
to them in `adapter/`.
"""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save_file

from asyncrl.image_processor import load_image_processor
from asyncrl.train.deepspeed_engine import TrainEngine
from asyncrl.train.lora import write_adapter
from asyncrl.weights.adapter import PREFIX

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)


def gather_policy(engine: TrainEngine, copy: bool = False) -> dict[str, torch.Tensor]:
    """Return the weights by checkpoint name on rank 0's CPU, tied ones once; nothing on other ranks. A collective.

    copy: own the memory, so that training can continue while the tensors are written. A policy with an adapter gives
    the merged weights and, under peft's names, the adapter's.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in chain(engine.merged() if engine.has_adapter else (), engine.checkpoint()):
        if engine.rank == 0:
            tensors[name] = tensor.to("cpu", copy=copy).contiguous()
    return tensors


def write_policy(
    engine: TrainEngine, tensors: dict[str, torch.Tensor], folder: Path, base_model: str
) -> None:
    """Write gathered weights, configuration and tokenizer into a new folder. For rank 0, in any thread."""
    folder.mkdir(parents=True)
    model = engine.engine.module.model
    model.config.save_pretrained(folder)
    adapter = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    whole = {name: tensor for name, tensor in tensors.items() if name not in adapter}
    save_file(whole, str(folder / "model.safetensors"), metadata={"format": "pt"})
    if adapter:
        write_adapter(model, adapter, folder / "adapter", base_model)
    _copy_tokenizer(base_model, folder)


def _copy_tokenizer(base_model: str, folder: Path) -> None:
    source = Path(base_model)
    if source.is_dir():
        for name in COPIED:
            if (source / name).exists():
                shutil.copy2(source / name, folder / name)
        return
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(base_model).save_pretrained(folder)
    if (processor := load_image_processor(base_model)) is not None:
        processor.processor.save_pretrained(folder)
