"""What a run says of episodes that fail by no fault of the policy, and when that ends it. Pure.

The first failure of each class is told in full, the share of failed episodes whenever it may be news, and a run none
of whose groups could be used is ended: it would go on in silence until the trainer's patience is over.
"""

from __future__ import annotations

from typing import Any

USABLE = ("ready", "taken", "trained", "dropped")
"""States of groups that were played; one that was dropped says nothing against its environment."""


class FailureReport:
    """Follows the counts of a run's buffer from the first ones it is shown: what an earlier life of the run lost says
    nothing about this one, whose environment may have been mended."""

    def __init__(self, groups_per_step: int) -> None:
        self.groups_per_step = groups_per_step
        self._before: dict[str, Any] | None = None
        self._told: set[str] = set()
        self._said = 0

    def news(self, stats: dict[str, Any]) -> list[str]:
        """Return what is to be said of these counts and has not been said."""
        failed, episodes, _ = self._of_this_life(stats)
        lines = []
        for failure in failed.keys() - self._told:
            told = failed[failure]["told"].replace("\n", "\n    ")
            lines.append(f"an episode failed ({failure}): {told}")
            self._told.add(failure)
        total = sum(one["episodes"] for one in failed.values())
        if total >= 2 * max(1, self._said):
            self._said = total
            by = ", ".join(f"{failure} {failed[failure]['episodes']}" for failure in sorted(failed))
            lines.append(f"failed episodes: {total} of {episodes} ({total / max(1, episodes):.0%}): {by}")
        return lines

    def hopeless(self, stats: dict[str, Any]) -> str:
        """Return why no group of this run can be used, or "".

        So it is when the environment has failed as many groups as a step trains, when as many tasks were set aside
        after all their attempts, or all tasks of a plan that is shorter, and no group could be used.
        """
        failed, episodes, set_aside = self._of_this_life(stats)
        if not failed or any(stats[state] for state in USABLE):
            return ""
        lost = failed.get("environment", {"groups": 0})["groups"]
        over = stats["plan_closed"] and not stats["pending"] and not stats["in_flight"]
        if max(lost, set_aside) < self.groups_per_step and not (over and set_aside):
            return ""
        worst = max(failed, key=lambda failure: failed[failure]["episodes"])
        total = sum(one["episodes"] for one in failed.values())
        groups = sum(one["groups"] for one in failed.values())
        return (
            f"none of the first {groups} groups could be used: {total} of {episodes} episodes failed "
            f"({worst}); the first one: {failed[worst]['told']}"
        )

    def _of_this_life(self, stats: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], int, int]:
        """Return what failed since the first counts by class, the episodes since, and the tasks set aside since."""
        if self._before is None:
            self._before = stats
        before, failed = self._before, {}
        for failure, now in stats["failed_episodes"].items():
            then = before["failed_episodes"].get(failure, {"episodes": 0, "groups": 0})
            if now["episodes"] > then["episodes"]:
                failed[failure] = {
                    "episodes": now["episodes"] - then["episodes"],
                    "groups": now["groups"] - then["groups"],
                    # The first one of all is of this life only where there was none before.
                    "told": now["newest"] if then["episodes"] else now["first"],
                }
        return failed, stats["episodes"] - before["episodes"], stats["failed"] - before["failed"]
