"""Short conversations of one or two turns, which need no file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

NAMES = ("Ann", "Ben", "Cleo", "Dan")
STEPS = 20
BETAS = 0.9, 0.95
LEARNING_RATES = {
    "apart": 1e-6,
    "packed": 1e-6,
    # TRL's defaults. At ten times as much the loss is gone after eight steps, and norms near 0 are hard to compare.
    "dpo": 1e-6,
    "kto": 1e-6,
    "small_dpo": 1e-3,
    "small_kto": 1e-3,
}
"""Those with which `trl_steps.py` records; what was recorded has its own beside it."""
APART, PACKED, PACKED_LENGTH = 4, 2, 192
"""Rows of a step, bins of a step with packing, and tokens of a bin."""
ROLES = [f"<|im_start|>{role}\n" for role in ("system", "user", "assistant")]
TEMPLATE = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML without tools, as SmolLM2's."""
PAIRS, VERDICTS, BETA = 2, 4, 0.1
"""Pairs of a step, and single answers of a step."""
SMOLLM2_PAIRS, SMOLLM2_VERDICTS = 1, 2
"""The same of SmolLM2, whose rows are short: a step takes it seconds."""


def talks(number: int = 80) -> list[list[dict[str, str]]]:
    """Return `number` conversations, the same ones each time."""
    found = []
    for i in range(number):
        a, b = 3 + i * 7 % 40, 2 + i * 5 % 30
        talk = [
            {
                "role": "user",
                "content": f"{NAMES[i % 4]} has {a} apples and gets {b} more. How many are there?",
            },
            {"role": "assistant", "content": f"{a} + {b} = {a + b}"},
        ]
        if i % 3 == 0:
            talk += [
                {"role": "user", "content": "And one less?"},
                {"role": "assistant", "content": f"{a + b} - 1 = {a + b - 1}"},
            ]
        found.append(talk)
    return found


def sums(number: int) -> list[list[dict[str, str]]]:
    """Return `number` conversations of a few words each, the same ones each time."""
    return [
        [
            {"role": "system", "content": "Add."},
            {"role": "user", "content": f"{3 + i % 5} + {2 + i % 7} ="},
            {"role": "assistant", "content": f"{5 + i % 5 + i % 7}"},
        ]
        for i in range(number)
    ]


def pairs(rows: list[list[dict[str, str]]]) -> list[dict[str, list[dict[str, str]]]]:
    """Return for each conversation its prompt, with its answer to prefer and another one."""
    found = []
    for i, talk in enumerate(rows):
        words = "Let me think about it." if i % 2 else f"{i} or so"
        rejected = [{"role": "assistant", "content": words}]
        found.append({"prompt": talk[:-1], "chosen": talk[-1:], "rejected": rejected})
    return found


def verdicts(rows: list[list[dict[str, str]]]) -> list[dict[str, Any]]:
    """Return for each conversation its prompt with one answer, which every second time is desirable."""
    found = []
    for i, talk in enumerate(rows):
        completion = talk[-1:] if i % 2 == 0 else [{"role": "assistant", "content": f"{i} or so"}]
        found.append({"prompt": talk[:-1], "completion": completion, "label": i % 2 == 0})
    return found


def save_small(folder: Path) -> str:
    """Save a random model of two layers, whose tokenizer is made of these words, with SmolLM2's chat template; return
    its folder. Each time it is the same."""
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

    words = [message["content"] for talk in talks() for message in talk]
    tokenizer = build_tokenizer([*words, *ROLES] * 4, 400, 256)
    tokenizer.chat_template = TEMPLATE
    save(folder, build_model(len(tokenizer), 64, 2, 2, 256, tokenizer.eos_token_id, seed=0), tokenizer)
    return str(folder)
