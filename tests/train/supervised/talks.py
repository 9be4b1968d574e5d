"""Short conversations of one or two turns, which need no file."""

from __future__ import annotations

NAMES = ("Ann", "Ben", "Cleo", "Dan")
STEPS = 20
LEARNING_RATE, BETAS = 1e-5, (0.9, 0.95)
APART, PACKED, PACKED_LENGTH = 4, 2, 192
"""Rows of a step, bins of a step with packing, and tokens of a bin."""
PAIRS, BETA = 2, 0.1
"""Pairs of a step."""


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


def pairs(number: int = STEPS * PAIRS) -> list[dict[str, list[dict[str, str]]]]:
    """Return `number` prompts, each with an answer to prefer and another one."""
    found = []
    for i, talk in enumerate(talks(number)):
        words = "Let me think about it." if i % 2 else f"{i} or so"
        found.append(
            {
                "prompt": talk[:-1],
                "chosen": talk[-1:],
                "rejected": [{"role": "assistant", "content": words}],
            }
        )
    return found
