"""Loss and gradient norm of the first steps of TRL's SFTTrainer, DPOTrainer and KTOTrainer, for `test_trl.py`.

    asyncrl models get smollm2-135m --out MODEL
    # With trl==1.16.0:
    python -m tests.extensions.supervised.trl_steps MODEL tests/extensions/supervised/trl_steps.json

Names after the file, such as `dpo kto`, compute these alone; the others keep their numbers. Each step is written
when it is computed, so that an interrupted run leaves its first steps.

TRL reads which tokens the assistant wrote from marks in the chat template; the model's own has none, so this one is it
with marks around each answer and its stop token. The trainers of preferences learn all that the template writes after
a prompt, so there the line break after the last message is left out, which no policy writes.

TRL clips by torch's norm of the gradients. On CPUs that adds up the squares of a tensor in float32 one after another,
which loses 2e-5 of the norm of a DPO step of SmolLM2 and 1e-2 of 17 million equal elements, so it is taken in float64
here. The names in `summed_in_float32` were recorded with torch's own norm.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from tests.extensions.supervised.talks import (
    APART,
    BETA,
    BETAS,
    LEARNING_RATES,
    PACKED,
    PACKED_LENGTH,
    PAIRS,
    SMOLLM2_PAIRS,
    SMOLLM2_VERDICTS,
    STEPS,
    VERDICTS,
    pairs,
    save_small,
    sums,
    talks,
    verdicts,
)
from tests.extensions.supervised.talks import TEMPLATE as SMALL_TEMPLATE

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


LAST = "{{ '\n' if not loop.last or messages[-1].role != 'assistant' }}"
"""In place of the template's line break."""


Keep = Callable[[list[list[float]]], None]
"""Takes `[loss, gradient norm]` of each step up to now, after each step."""


def steps(keep: Keep, model: str, packing: bool) -> None:
    """Train by supervision."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            **_settings(folder, "packed" if packing else "apart"),
            per_device_train_batch_size=PACKED if packing else APART,
            assistant_only_loss=True, packing=packing, max_length=PACKED_LENGTH if packing else 1024,
        )  # fmt: skip
        rows = Dataset.from_list([{"messages": talk} for talk in talks()])
        tokenizer = _tokenizer(model, TEMPLATE)
        _train(keep, SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer))


def preference_steps(keep: Keep, kind: str, model: str, template: str, small: bool = False) -> None:
    """Train on preferences.

    kind: "dpo" or "kto". template: without the last line break. small: of the model that `save_small` makes, which has
    more and longer rows.
    """
    import trl
    from datasets import Dataset

    sizes = (PAIRS, VERDICTS) if small else (SMOLLM2_PAIRS, SMOLLM2_VERDICTS)
    batch_size = sizes[kind == "kto"]
    talked = (talks if small else sums)(STEPS * batch_size)
    config, trainer, rows = {
        "dpo": (trl.DPOConfig, trl.DPOTrainer, pairs(talked)),
        "kto": (trl.KTOConfig, trl.KTOTrainer, verdicts(talked)),
    }[kind]
    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(folder, f"small_{kind}" if small else kind)
        args = config(
            **settings, per_device_train_batch_size=batch_size, beta=BETA, precompute_ref_log_probs=True
        )
        tokenizer = _tokenizer(model, template)
        data = Dataset.from_list(rows)
        _train(keep, trainer(model=model, args=args, train_dataset=data, processing_class=tokenizer))


def small_steps(keep: Keep, kind: str) -> None:
    """Train the model that `save_small` makes on preferences."""
    template = SMALL_TEMPLATE.replace("+ '<|im_end|>' + '\n'}}", "+ '<|im_end|>' }}" + LAST)
    with tempfile.TemporaryDirectory() as folder:
        preference_steps(keep, kind, save_small(Path(folder)), template, small=True)


def _settings(folder: str, name: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": STEPS,
        "learning_rate": LEARNING_RATES[name], "lr_scheduler_type": "constant",
        "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "max_grad_norm": 1.0, "logging_steps": 1,
        "train_sampling_strategy": "sequential", "gradient_checkpointing": False, "bf16": False, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "model_init_kwargs": {"dtype": "float32"}, "optim": "adamw_torch",
    }  # fmt: skip


def _tokenizer(model: str, template: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    return tokenizer


def _train(keep: Keep, trainer: Any) -> None:
    from transformers import TrainerCallback

    class Kept(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            keep([[line["loss"], line["grad_norm"]] for line in state.log_history if "grad_norm" in line])

    trainer.add_callback(Kept())
    with mock.patch("torch.nn.utils.clip_grad_norm_", clip_by_exact_norm):
        trainer.train()


def clip_by_exact_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """Do what torch's function of that name does by the norm of the gradients in float64; return the norm."""
    import torch

    assert norm_type == 2.0
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = torch.stack([torch.linalg.vector_norm(grad.double()) for grad in grads]).norm()
    for grad in grads:
        grad.mul_(min(1.0, max_norm / (float(norm) + 1e-6)))
    return norm


if __name__ == "__main__":
    model, file, *names = sys.argv[1:]
    unended = TEMPLATE.replace("{{ '\n' }}", LAST)
    computed: dict[str, Callable[[Keep], None]] = {
        "apart": lambda keep: steps(keep, model, False),
        "packed": lambda keep: steps(keep, model, True),
        "dpo": lambda keep: preference_steps(keep, "dpo", model, unended),
        "kto": lambda keep: preference_steps(keep, "kto", model, unended),
        "small_dpo": lambda keep: small_steps(keep, "dpo"),
        "small_kto": lambda keep: small_steps(keep, "kto"),
    }
    found = json.loads(Path(file).read_text()) if names else {}

    def write(name: str, lines: list[list[float]]) -> None:
        found[name] = lines
        found["learning_rate"] = found.get("learning_rate", {}) | {name: LEARNING_RATES[name]}
        found["summed_in_float32"] = [one for one in found.get("summed_in_float32", []) if one != name]
        Path(file).write_text(json.dumps(found, indent=1) + "\n")

    for name in names or computed:
        computed[name](partial(write, name))
