"""What a policy wrote as its answer, told from its reasoning by the marks around that."""

from __future__ import annotations

REASONING = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|channel|>analysis", "<|channel|>final<|message|>"),
)
"""Marks of reasoning, opening and closing."""


def after_reasoning(text: str) -> str:
    """Return what stands after the last reasoning, and before any that is not closed."""
    for _, closing in REASONING:
        text = text[place + len(closing) :] if (place := text.rfind(closing)) >= 0 else text
    for opening, _ in REASONING:
        text = text[:place] if (place := text.find(opening)) >= 0 else text
    return text
