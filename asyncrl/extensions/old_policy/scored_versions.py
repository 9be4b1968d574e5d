"""Old log-probabilities from an interruption: what a version has sampled is scored before its weights change.

The third exact route of 2605.12070, beside `snapshots.Snapshots` and `old_policy.OldPolicies`, whose numbers it gives
without weights of earlier versions. Before the first optimizer step from version v to v + 1:

    engines: generation pauses until the next publish -> all sequences in which v has sampled tokens, ended or not
    trainer: their log-probabilities under the weights that are still v's, kept for `keep` versions

A token is found again by its version and its context, wherever it ends up in a batch. The step's own numbers for the
batch in training are kept first, and left out here: episodes that begin alike may be trained at different steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from asyncrl.errors import ConfigError
from asyncrl.extensions.old_policy.interruption import interrupt
from asyncrl.extensions.old_policy.sampled import Sequence
from asyncrl.extensions.old_policy.scored_tokens import ScoredTokens, prefix_hashes
from asyncrl.extensions.old_policy.snapshots import PastVersions, put_version_logp
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.loop.callback_context import CallbackContext
from asyncrl.train.loop.callbacks import Refusal, TrainerCallback
from asyncrl.train.step.part_table import PartContext
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.serve_rows import share_batch
from asyncrl.train.step.step_batch import Rows, StepBatch, row_to_score
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.whole_batch import rows_by_version, whole_batch
from asyncrl.types import IMAGES, Trajectory

if TYPE_CHECKING:
    from asyncrl.train.loop.publication import Publication


class ScoredVersions(PastVersions):
    """Used as `Snapshots` is. All it keeps is on the first rank.

    keep: versions before the current one that a batch may hold tokens of. interrupt: pauses the engines and returns in
    which sequences a version has sampled tokens. Whatever asks or fills it is called on the first rank.
    """

    def __init__(self, keep: int, interrupt: Callable[[int], list[Sequence]] = lambda _: []) -> None:
        self.keep = keep
        self.interrupt = interrupt
        self.tokens = ScoredTokens()
        self.scored_version = -1
        """The newest version whose engines were interrupted; equal on every rank."""
        self.metrics: dict[str, float] = {}
        """The metrics of the step in progress."""
        self._start_s = 0.0
        self._found: tuple[StepBatch, Ragged] | None = None
        """What `missing` has found of the batch that is about to be trained."""

    def before_run(self, engine: TrainEngine, version: int) -> None:
        """See `StepPart`."""
        self.scored_version = version - 1

    def logp(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Ragged:
        """See `PastVersions`. Tokens of earlier versions were scored before the weights changed."""
        found = self.find(batch) if engine.rank == 0 else Ragged.full(batch.counts)
        for version, rows in engine.on_first(lambda: rows_by_version(batch)):
            if int(version) == batch.step:
                put_version_logp(found, engine, batch, settings, batch.step, rows, None)
        if engine.rank == 0:
            self.keep_scores(batch, found)
        return found

    def before_update(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> None:
        """Score what the version of the step has sampled, before the first change of its weights; then do nothing until
        the next step. A collective."""
        if self.scored_version == batch.step:
            return
        self.scored_version = batch.step
        found: list[StepBatch] = []

        def unscored() -> int:
            found.append(self.unscored(batch))
            return found[0].num_rows

        if not engine.on_first(unscored):
            return
        rows = share_batch(engine, found[0] if found else None)

        def forward(some: Rows) -> dict[str, Tensor]:
            return engine.outputs(some.token_ids, some.mask, settings.temperature)

        logprobs = whole_batch(engine, rows, settings, forward, ("logp",))["logp"]
        if engine.rank == 0:
            self.keep_scores(rows, logprobs)
            self.scored(rows)

    def unscored(self, batch: StepBatch) -> StepBatch:
        """Interrupt the engines; return as rows what the version of the step has sampled that no score is kept of."""
        self._start_s = time.perf_counter()
        version, rows = batch.step, []
        for sequence in self.interrupt(version):
            ids, places = sequence.token_ids, np.flatnonzero(sequence.sampled)
            places = places[np.isnan(self.tokens.find(version, prefix_hashes(ids, places)))]
            if len(places):
                rows.append(_row(ids, places, version))
        self.metrics["old_policy/scored_tokens"] = 0.0
        self.metrics["old_policy/interrupt_s"] = time.perf_counter() - self._start_s
        return StepBatch(tuple(rows), torch.zeros(len(rows), dtype=torch.long), version)

    def keep_scores(self, rows: StepBatch, logprobs: Ragged) -> None:
        """Keep the log-probabilities under the version of the step of the tokens that it has sampled in rows."""
        version, hashes, values = rows.step, [], []
        for index, t in enumerate(rows.trajectories):
            hashes.append(prefix_hashes(t.token_ids, _places(t, version)))
            values.append(logprobs.row(index).numpy()[t.versions[t.loss_mask] == version])
        self.tokens.add(version, np.concatenate(hashes), np.concatenate(values))

    def scored(self, rows: StepBatch) -> None:
        """Note that the rows of `unscored` are kept."""
        self.metrics["old_policy/scored_tokens"] = float(rows.counts.sum())
        self.metrics["old_policy/interrupt_s"] = time.perf_counter() - self._start_s

    def find(self, batch: StepBatch) -> Ragged:
        """Return the log-probabilities of sampled tokens of earlier versions than the step's; NaN for
        those that are not known, and for the step's own.

        Raises `ConfigError` for images.
        """
        if self._found is not None and self._found[0] is batch:
            return self._found[1]
        found = Ragged.full(batch.counts, torch.nan)
        for index, t in enumerate(batch.trajectories):
            if IMAGES in t.extras:
                raise ConfigError(
                    "train.old_policy: must be 'trainer' where trajectories have images, got 'interrupt'"
                )
            versions = t.versions[t.loss_mask]
            for version in np.unique(versions[versions < batch.step]).tolist():
                known = self.tokens.find(version, prefix_hashes(t.token_ids, _places(t, version)))
                found.row(index)[torch.from_numpy(versions == version)] = torch.from_numpy(known)
        return found

    def missing(self, batch: StepBatch) -> dict[str, int]:
        """Return the groups with tokens of earlier versions that are not known, and how many."""
        found, missing, num_older = self.find(batch), dict[str, int](), 0
        self._found = batch, found
        for index, t in enumerate(batch.trajectories):
            older = torch.from_numpy(t.versions[t.loss_mask] < batch.step)
            unknown = int(found.row(index)[older].isnan().sum())
            num_older += int(older.sum())
            if unknown:
                group = batch.group_ids[int(batch.group[index])]
                missing[group] = missing.get(group, 0) + unknown
        # Those of a batch that is given back count with the one that takes its place.
        before = self.metrics.get("old_policy/missing_tokens", 0.0)
        self.metrics["old_policy/missing_tokens"] = before + sum(missing.values())
        self.metrics["old_policy/older_tokens"] = float(num_older)
        return missing

    def after_step(self, engine: TrainEngine, version: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Drop versions that no token of a batch can carry any more; return the metrics of the step."""
        self.tokens.drop_before(version - self.keep)
        found, self.metrics, self._found = self.metrics, {}, None
        return found

    def state_dict(self) -> dict[str, Any]:
        return self.tokens.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.tokens.load_state_dict(state)


class Interrupting(TrainerCallback):
    """Has engines interrupted for what a version has sampled, and refuses groups of which older tokens were not scored.

    An engine has died, say, before it said what it had sampled, or the trainer went back to a checkpoint.
    """

    def __init__(self, scored: ScoredVersions, limit_s: float) -> None:
        self.scored = scored
        self.limit_s = limit_s

    def attach(self, publication: Publication) -> None:
        def interrupted(version: int) -> list[Sequence]:
            """Pause the engines, once they have the version, and return what it has sampled. On rank 0."""
            publication.wait()
            return publication.publisher.ask(lambda engines: interrupt(engines, version, self.limit_s))

        self.scored.interrupt = interrupted

    def refuses(self, engine: TrainEngine, batch: StepBatch, settings: StepSettings) -> Refusal | None:
        missing = engine.on_first(lambda: self.scored.missing(batch))
        if not missing:
            return None
        reason = (
            f"old log-probabilities of {sum(missing.values())} tokens in {len(missing)} groups are missing: their "
            f"versions were replaced before they were scored (step {batch.step}, train.old_policy='interrupt')"
        )
        return Refusal(list(missing), reason, blames=False)


def scored_versions(context: PartContext) -> ScoredVersions:
    """Return the part of a run with `train.old_policy = "interrupt"`."""
    return ScoredVersions(context.config.buffer.max_staleness)


def interrupting(context: CallbackContext) -> Interrupting:
    """Return the callback of a run with `train.old_policy = "interrupt"`."""
    scored = context.auxiliary.parts[ScoredVersions.name]
    assert isinstance(scored, ScoredVersions)
    return Interrupting(scored, context.config.rank_timeout_s)


def _places(t: Trajectory, version: int) -> np.ndarray:
    """Return where a row has tokens that a version has sampled."""
    return np.flatnonzero(t.loss_mask & (t.versions == version))


def _row(token_ids: np.ndarray, places: np.ndarray, version: int) -> Trajectory:
    mask = np.isin(np.arange(len(token_ids)), places)
    return row_to_score(token_ids, mask, "unscored", version=version)
