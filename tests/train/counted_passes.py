"""Counts the passes over the whole batch that a step takes beside its optimizer steps."""

from __future__ import annotations

from typing import Any

import pytest

from asyncrl.extensions.critic import part as critic
from asyncrl.extensions.old_policy import snapshots
from asyncrl.extensions.published import answer_probability, average
from asyncrl.extensions.published.score_norms import ScoreNorms
from asyncrl.extensions.self_teacher import part as self_teacher
from asyncrl.train.parts import frozen
from asyncrl.train.step import auxiliary_models, gradient, whole_batch
from tests.train.one_step import Learner


class CountedPasses:
    """Real passes, counted while a test runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.whole = 0
        self.parts = 0
        """Of some rows each, all rows together."""
        self.score_norms = 0
        plain, score_norms = whole_batch.whole_batch, ScoreNorms.score

        def counted(*args: Any, **named: Any) -> Any:
            if len(args) > 5 or "rows" in named:
                self.parts += 1
            else:
                self.whole += 1
            return plain(*args, **named)

        def counted_norms(*args: Any) -> Any:
            self.score_norms += 1
            return score_norms(*args)

        parts = (answer_probability, average, critic, frozen, self_teacher, snapshots)
        for module in (auxiliary_models, gradient, *parts):
            monkeypatch.setattr(module, "whole_batch", counted)
        monkeypatch.setattr(ScoreNorms, "score", counted_norms)

    def operations(self, learner: Learner) -> float:
        """Return the operations of the step for each parameter and token: see the extension `simulation`."""
        train, critic = learner.config.train, learner.auxiliary.parts.get("critic")
        learning = 6 + 2 * train.gradient_checkpointing
        trained = 1 + (critic.config.steps if critic is not None and not critic.shared else 0)
        # Before the step a row of each group is compared; a teacher's logits are computed with the loss.
        forward = (
            self.whole + (self.parts > 0) + (train.max_logp_error > 0) / learner.config.rollout.group_size
        )
        forward += "teacher_logits" in learner.objective.needs
        return trained * learning + 2 * forward + 6 * self.score_norms
