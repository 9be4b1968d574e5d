"""What a run reports while nearly every group is dropped: otherwise it would wait for a batch in silence. Pure."""

from __future__ import annotations

from typing import Any

LEAST_BATCHES = 4
"""So many batches' groups are dropped within one step before it is reported. The next report is at twice as many, or at
a step of twice the number."""
ADVICE = {
    "no_signal": "all episodes of such a group earned the same, which teaches nothing: the tasks are too hard or too "
    "easy for this policy. Change env.config, start from a better model (sft.steps) or raise rollout.group_size",
    "too_few_usable": "most episodes of such a group failed: asyncrl doctor RUN says how",
    "too_long": "an episode of such a group has more tokens than the trainer takes: give fewer or shorter turns in "
    "env.config, or raise engine.max_model_len",
}
"""What to do about groups that are dropped, by reason."""


class DroppedReport:
    """Follows the counts of a run's buffer from version to version."""

    def __init__(self, groups_per_step: int) -> None:
        self.groups_per_step = groups_per_step
        self._before: dict[str, Any] | None = None
        self._reported = 0
        """Dropped groups of this version when it was reported last."""
        self._next_step = 0
        """Before it no further step is reported."""

    def new_messages(self, stats: dict[str, Any]) -> list[str]:
        """Return what these counts say and has not been reported."""
        before = self._before
        if before is None or stats["version"] != before["version"]:
            self._before, self._reported = stats, 0
            return []
        if not self._reported and stats["version"] < self._next_step:
            return []
        reasons = {
            reason: groups - before["dropped_by_reason"].get(reason, 0)
            for reason, groups in stats["dropped_by_reason"].items()
            # Tasks that nobody played, at the end of a plan.
            if reason != "abandoned"
        }
        dropped = sum(reasons.values())
        if dropped < max(LEAST_BATCHES * self.groups_per_step, 2 * self._reported):
            return []
        self._reported = dropped
        self._next_step = max(2 * stats["version"], 1)
        ordered = sorted(
            (reason for reason in reasons if reasons[reason]), key=lambda reason: -reasons[reason]
        )
        by = ", ".join(f"{reason} {reasons[reason]}" for reason in ordered)
        episodes = stats["dropped_episodes"] - before["dropped_episodes"]
        reward = (stats["dropped_reward_sum"] - before["dropped_reward_sum"]) / max(1, episodes)
        line = (
            f"step {stats['version']} waits for its batch: {dropped} groups were dropped meanwhile ({by}; "
            f"mean reward {reward:.3f}), {stats['ready']} of {self.groups_per_step} are ready"
        )
        advice = ADVICE.get(ordered[0], "")
        return [line + (f"\n    -> {advice}" if advice else "")]
