"""Any dataset of reasoning-gym: one question, one answer, graded by the dataset's own scorer."""

from __future__ import annotations

import zlib
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.extensions.env_adapters.harmless import is_harmless
from asyncrl.extensions.env_adapters.requirements import AdapterEnv
from asyncrl.types import Message, Task

FORMATS = ("tagged", "plain")
TRIES = 64
"""Entries tried to find one of the task's split."""
SEEDS = 2**31
EVALUATING = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "polynomial_multiplication",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Datasets whose scorers pass the answer to `eval` or `sympy.parse_expr` (version 0.1.25)."""


class ReasoningGym(AdapterEnv):
    """Answer a question of a reasoning-gym dataset.

    `dataset` names it; `settings` are its own, `size` and `seed` excepted. `answer` is "tagged" (the text inside
    the last <answer>...</answer>) or "plain" (the whole turn). The reward is the scorer's, from 0 to 1. Half of a
    dataset's questions belong to the train split and half to the held-out one, by their checksum.
    """

    library: ClassVar[str] = "reasoning_gym"
    extra: ClassVar[str] = "reasoning-gym"
    max_turns = 1

    def __init__(
        self,
        task: Task,
        dataset: str = "chain_sum",
        settings: dict[str, Any] | None = None,
        answer: str = "tagged",
    ) -> None:
        super().__init__(task)
        if answer not in FORMATS:
            raise ValueError(f"answer: must be one of {', '.join(FORMATS)}, got {answer!r}")
        self.answer = answer
        self.dataset = self._create(dataset, dict(settings or {}))
        self.index = self._find()
        self.entry = self.dataset[self.index]

    def reset(self) -> list[Message]:
        question: Message = {"role": "user", "content": self.entry["question"]}
        if self.answer == "plain":
            return [question]
        return [{"role": "system", "content": self.load().utils.SYSTEM_PROMPTS["default"].strip()}, question]

    def step(self, action: Action) -> Step:
        """Grade the answer; a turn without one, or with one that is not safe to evaluate, scores 0."""
        text: str | None = action.content.strip()
        if self.answer == "tagged":
            text = self.load().utils.extract_answer(action.content)
        refused = text is not None and not self._may_score(text)
        reward = 0.0 if text is None or refused else self._score(text)
        components = {"answered": float(text is not None), "refused": float(refused), "score": reward}
        return Step(reward=reward, done=True, success=reward >= 1.0, components=components)

    def oracle(self, messages: list[Message]) -> Message:
        """Raises `NotImplementedError` for the few datasets that state no answer."""
        if self.entry["answer"] is None:
            raise NotImplementedError
        return self._say(self.entry["answer"])

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Return the answer to another question of the same dataset."""
        other = self.dataset[(self.index + 1 + rng.randrange(TRIES)) % len(self.dataset)]
        return self._say(other["answer"])

    def problem_key(self) -> str:
        """Return the question."""
        return str(self.entry["question"])

    def _create(self, name: str, settings: dict[str, Any]) -> Any:
        library = self.load()
        names = sorted(library.factory.DATASETS)
        if name not in names:
            raise ValueError(f"dataset: unknown {name!r}; allowed: {', '.join(names)}")
        if reserved := {"size", "seed"} & set(settings):
            raise ValueError(f"settings: {min(reserved)!r} follows from the task")
        if name == "composite":
            specs = settings.pop("datasets", [])
            settings["datasets"] = [library.composite.DatasetSpec(**spec) for spec in specs]
        # Datasets seed entry i with seed + i: the seeds of tasks are far enough apart to share none.
        seed = self.task.seed * 2 * TRIES % SEEDS
        try:
            return library.create_dataset(name, size=2 * TRIES, seed=seed, **settings)
        except (TypeError, ValueError, AssertionError) as error:
            raise ValueError(f"settings: dataset {name!r} refuses {settings}: {error}") from error

    def _find(self) -> int:
        """Return the first entry whose question belongs to the task's split. Raises `ValueError` when none does."""
        for index in range(TRIES):
            if zlib.crc32(self.dataset[index]["question"].encode()) % 2 == self.task.seed % 2:
                return index
        raise ValueError(f"dataset: too few different questions to split ({TRIES} looked at)")

    def _may_score(self, text: str) -> bool:
        source = self.entry["metadata"]["source_dataset"]
        return source not in EVALUATING or text == self.entry["answer"] or is_harmless(text)

    def _score(self, text: str) -> float:
        try:
            return min(max(float(self.dataset.score_answer(answer=text, entry=self.entry)), 0.0), 1.0)
        except Exception:
            # The dataset's own answers score without error, so this answer is the cause of an exception.
            return 0.0

    def _say(self, answer: str | None) -> Message:
        text = answer or ""
        return {
            "role": "assistant",
            "content": text if self.answer == "plain" else f"<answer>{text}</answer>",
        }
