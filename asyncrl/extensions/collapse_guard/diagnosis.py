"""What `asyncrl doctor RUN` says of a run whose guard has acted. Pure."""

from __future__ import annotations

from asyncrl.run.diagnosis import Finding, Observed


def guard_acted(run: Observed) -> Finding | None:
    """The collapse guard has changed the run."""
    acted = [step for step in run.steps if step.get("guard/message")]
    if not acted:
        return None
    back = sum("back to version" in str(step["guard/message"]) for step in acted)
    scale = run.values("guard/rate_scale")[-1:] or [1.0]
    return Finding(
        "guard_acted", "not learning",
        f"train.collapse_guard acted in {len(acted)} steps and went back to a checkpoint in {back} of them; the "
        f"learning rate is {scale[0]:g} of the scheduled one. The last: {acted[-1]['guard/message']}",
        "if the reward only dips, as it does under staleness, set train.collapse_guard = false; if the run does "
        "collapse, lower train.learning_rate or buffer.max_staleness",
    )  # fmt: skip
