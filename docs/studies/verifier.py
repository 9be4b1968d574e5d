"""Sums that are guessed: the environment of verifier.toml."""

from __future__ import annotations

from random import Random

from length import Sums

from asyncrl.types import Message


class Guessed(Sums):
    """`length.py:Sums`, half of whose random answers are wrong, and whose verifier's expert adds the digits."""

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Answer right away, rightly in half of the episodes."""
        wrong = [digit for digit in range(10) if digit != self.sums[-1]]
        return {
            "role": "assistant",
            "content": f"so {self.sums[-1] if rng.random() < 0.5 else rng.choice(wrong)}",
        }

    def verification(self) -> str:
        """Write each addition."""
        parts = zip(self.sums, self.digits[1:], self.sums[1:], strict=False)
        return " ".join(f"{so_far}+{digit}={total}" for so_far, digit, total in parts)
