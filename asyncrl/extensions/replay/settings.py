"""The settings of groups that are trained again, keys of `[train]`."""

from __future__ import annotations

from pydantic import Field

from asyncrl.config_sections import Section, Seldom


class ReplayConfig(Section):
    """Keys of `[train]`."""

    replay_groups: Seldom[int] = Field(0, ge=0)
    """Groups of earlier steps that each step trains again, beside the fresh ones (docs/curriculum.md)."""
    complete_groups: Seldom[bool] = False
    """Complete a group in which no episode succeeded by an earlier success at the same task, where there is one
    (docs/curriculum.md)."""
    complete_from: Seldom[str] = ""
    """Recorded successes that complete groups of tasks that the run itself has not solved: the folder of a run, or
    Parquet files of its trajectories, of any policy with the same tokenizer (docs/curriculum.md). Empty: none."""
    replay_max_age: Seldom[int] = Field(8, ge=1)
    """Versions that the oldest token of a replayed group, or of a success that completes one, may be behind the step.
    Fresh groups are held to `buffer.max_staleness` as ever."""
