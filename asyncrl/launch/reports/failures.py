"""What a run reports about episodes that failed through no fault of the policy, and when it ends because of them. Pure.

The first failure of each class is reported in full, and the number of failed episodes whenever it has doubled. A run is
ended when none of its groups could be used: otherwise it would wait in silence until the trainer gives up.
"""

from __future__ import annotations

from typing import Any

USABLE = ("ready", "taken", "trained", "dropped")
"""States of groups that were played; a dropped group says nothing against its environment."""


class FailureReport:
    """Follows the counts of a run's buffer from the first ones it is given: failures in an earlier launch say nothing
    about this one, whose environment may have been repaired."""

    def __init__(self, groups_per_step: int) -> None:
        self.groups_per_step = groups_per_step
        self._before: dict[str, Any] | None = None
        self._reported: set[str] = set()
        self._reported_episodes = 0

    def new_messages(self, stats: dict[str, Any]) -> list[str]:
        """Return what these counts say and has not been reported."""
        failed, episodes, _ = self._of_this_launch(stats)
        lines = []
        for failure in failed.keys() - self._reported:
            text = failed[failure]["error"].replace("\n", "\n    ")
            lines.append(f"an episode failed ({failure}): {text}")
            self._reported.add(failure)
        total = sum(one["episodes"] for one in failed.values())
        if total >= 2 * max(1, self._reported_episodes):
            self._reported_episodes = total
            by = ", ".join(f"{failure} {failed[failure]['episodes']}" for failure in sorted(failed))
            lines.append(f"failed episodes: {total} of {episodes} ({total / max(1, episodes):.0%}): {by}")
        return lines

    def reason_to_stop(self, stats: dict[str, Any]) -> str:
        """Return why the run cannot succeed, "" if it may.

        It cannot if no group could be used, and either the environment has failed as many groups as a step trains, or
        as many tasks were set aside after all their attempts, or all tasks of a shorter plan were.
        """
        failed, episodes, set_aside = self._of_this_launch(stats)
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
            f"({worst}); the first one: {failed[worst]['error']}"
        )

    def _of_this_launch(self, stats: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], int, int]:
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
                    # The very first failure is of this launch only if there was none before.
                    "error": now["newest"] if then["episodes"] else now["first"],
                }
        return failed, stats["episodes"] - before["episodes"], stats["failed"] - before["failed"]
