"""The trained policy as a folder in Hugging Face format, which `transformers` and vLLM load.

A policy with an adapter is written with the adapter merged into its weights, and the adapter in peft's format next
to them in `adapter/`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME

from asyncrl.train.engine.deepspeed_engine import TrainEngine

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "tiktoken.model",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)


@dataclass(slots=True)
class PolicyShare:
    """What one rank writes of a policy."""

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """By checkpoint name, tied ones once, and those of an adapter under peft's names."""
    owners: dict[str, int] = field(default_factory=dict)
    """The rank that writes each tensor of the policy."""
    bytes: list[int] = field(default_factory=list)
    """What each rank writes."""


def gather_policy(engine: TrainEngine, copy: bool = False) -> PolicyShare:
    """Return this rank's share of the weights, about as large as any other's, on the CPU. A collective.

    copy: own the memory, so that training can continue while the tensors are written. A policy with an adapter gives
    the merged weights and the adapter's, which are all rank 0's.
    """
    share = PolicyShare(bytes=[0] * engine.num_ranks)
    for name, tensor in chain(engine.whole_model(), engine.checkpoint()):
        owner = share.bytes.index(min(share.bytes)) if engine.form.is_whole(name) else 0
        share.bytes[owner] += tensor.numel() * tensor.element_size()
        share.owners[name] = owner
        if owner == engine.rank:
            share.tensors[name] = tensor.to("cpu", copy=copy).contiguous()
    return share


def write_policy(engine: TrainEngine, share: PolicyShare, folder: Path, base_model: str) -> list[Path]:
    """Write this rank's share into a folder, in any thread; rank 0 also what belongs to the policy as a whole.

    One rank writes one file of weights, several a file each with transformers' index. Returns this rank's, if any.
    """
    num_ranks = len(share.bytes)
    is_whole = engine.form.is_whole
    whole = {name: tensor for name, tensor in share.tensors.items() if is_whole(name)}
    weights = [folder / _weights_file(engine.rank, num_ranks)] if whole else []
    for file in weights:
        save_file(whole, str(file), metadata={"format": "pt"})
    if engine.rank != 0:
        return weights
    model = engine.engine.module.model
    model.config.save_pretrained(folder)
    if num_ranks > 1:
        places = {
            name: _weights_file(owner, num_ranks) for name, owner in share.owners.items() if is_whole(name)
        }
        index = {"metadata": {"total_size": sum(share.bytes)}, "weight_map": places}
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(json.dumps(index, indent=1))
    if beside := {name: tensor for name, tensor in share.tensors.items() if name not in whole}:
        engine.form.write_beside(model, beside, folder, base_model)
    _copy_tokenizer(base_model, folder)
    return weights


def _weights_file(rank: int, num_ranks: int) -> str:
    if num_ranks == 1:
        return SAFE_WEIGHTS_NAME
    return f"model-{rank + 1:05d}-of-{num_ranks:05d}.safetensors"


def _copy_tokenizer(base_model: str, folder: Path) -> None:
    source = Path(base_model)
    if source.is_dir():
        for name in COPIED:
            if (source / name).exists():
                shutil.copy2(source / name, folder / name)
        return
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(base_model).save_pretrained(folder)
    from asyncrl.model_kinds import kind_of

    if (kind := kind_of(base_model)) is not None:
        kind.image_processor(base_model).save(folder)
