"""Loss and gradient norm of the first steps of TRL's SFTTrainer and DPOTrainer on SmolLM2-135M, for `test_trl.py`.

    asyncrl models get smollm2-135m --out MODEL
    python -m tests.train.supervised.trl_steps MODEL tests/train/supervised/trl_steps.json     # with trl==1.16.0

TRL reads which tokens the assistant wrote from marks in the chat template; the model's own has none, so this one is it
with marks around each answer and its stop token. Its DPOTrainer learns all that the template writes after a prompt, so
there the line break after the last message is left out, which no policy writes.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.train.supervised.talks import (
    APART,
    BETA,
    BETAS,
    LEARNING_RATE,
    PACKED,
    PACKED_LENGTH,
    PAIRS,
    SMALL_LEARNING_RATE,
    STEPS,
    pairs,
    save_small,
    talks,
)
from tests.train.supervised.talks import TEMPLATE as SMALL_TEMPLATE

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


LAST = "{{ '\n' if not loop.last or messages[-1].role != 'assistant' }}"
"""In place of the template's line break."""


def steps(model: str, packing: bool) -> list[list[float]]:
    """Return `[loss, gradient norm]` of each step of supervised training."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            **_settings(folder), per_device_train_batch_size=PACKED if packing else APART,
            assistant_only_loss=True, packing=packing, max_length=PACKED_LENGTH if packing else 1024,
        )  # fmt: skip
        rows = Dataset.from_list([{"messages": talk} for talk in talks()])
        tokenizer = _tokenizer(model, TEMPLATE)
        return _trained(SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer))


def preference_steps(model: str, template: str, learning_rate: float) -> list[list[float]]:
    """Return `[loss, gradient norm]` of each step of DPO. template: without the last line break."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        settings = _settings(folder) | {"learning_rate": learning_rate, "per_device_train_batch_size": PAIRS}
        args = DPOConfig(**settings, beta=BETA, precompute_ref_log_probs=True)
        tokenizer = _tokenizer(model, template)
        rows = Dataset.from_list(pairs())
        return _trained(DPOTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer))


def small_preference_steps() -> list[list[float]]:
    """Return the same of the model that `save_small` makes."""
    template = SMALL_TEMPLATE.replace("+ '<|im_end|>' + '\n'}}", "+ '<|im_end|>' }}" + LAST)
    with tempfile.TemporaryDirectory() as folder:
        return preference_steps(save_small(Path(folder)), template, SMALL_LEARNING_RATE)


def _settings(folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder, "max_steps": STEPS, "learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant",
        "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "max_grad_norm": 1.0, "logging_steps": 1,
        "train_sampling_strategy": "sequential", "gradient_checkpointing": False, "bf16": False, "use_cpu": True,
        "report_to": [], "save_strategy": "no", "model_init_kwargs": {"dtype": "float32"}, "optim": "adamw_torch",
    }  # fmt: skip


def _tokenizer(model: str, template: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = template
    return tokenizer


def _trained(trainer: Any) -> list[list[float]]:
    trainer.train()
    return [[line["loss"], line["grad_norm"]] for line in trainer.state.log_history if "grad_norm" in line]


if __name__ == "__main__":
    model = sys.argv[1]
    found = {
        "apart": steps(model, False),
        "packed": steps(model, True),
        "dpo": preference_steps(model, TEMPLATE.replace("{{ '\n' }}", LAST), LEARNING_RATE),
        "small_dpo": small_preference_steps(),
    }
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")
