"""Loss and gradient norm of the first steps of TRL's SFTTrainer on SmolLM2-135M, which `test_trl.py` compares with.

    asyncrl models get smollm2-135m --out MODEL
    python -m tests.train.supervised.trl_steps MODEL tests/train/supervised/trl_steps.json     # with trl==1.16.0

TRL reads which tokens the assistant wrote from marks in the chat template; the model's own has none, so this one is it
with marks around each answer and its stop token.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.train.supervised.talks import APART, BETAS, LEARNING_RATE, PACKED, PACKED_LENGTH, STEPS, talks

TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou "
    "are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n'}}{% if message['role'] == 'assistant' %}{% generation %}"
    "{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}"
    "{% endif %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def steps(model: str, packing: bool) -> list[list[float]]:
    """Return `[loss, gradient norm]` of each step."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import SFTConfig, SFTTrainer

    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(
            output_dir=folder, max_steps=STEPS, per_device_train_batch_size=PACKED if packing else APART,
            learning_rate=LEARNING_RATE, lr_scheduler_type="constant", adam_beta1=BETAS[0], adam_beta2=BETAS[1],
            max_grad_norm=1.0, logging_steps=1, train_sampling_strategy="sequential", gradient_checkpointing=False,
            bf16=False, use_cpu=True, report_to=[], save_strategy="no", assistant_only_loss=True, packing=packing,
            max_length=PACKED_LENGTH if packing else 1024, model_init_kwargs={"dtype": "float32"}, optim="adamw_torch",
        )  # fmt: skip
        rows = Dataset.from_list([{"messages": talk} for talk in talks()])
        trainer = SFTTrainer(model=model, args=args, train_dataset=rows, processing_class=tokenizer)
        trainer.train()
    return [[line["loss"], line["grad_norm"]] for line in trainer.state.log_history if "grad_norm" in line]


if __name__ == "__main__":
    found = {"apart": steps(sys.argv[1], False), "packed": steps(sys.argv[1], True)}
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n")
