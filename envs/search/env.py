"""Answer a question from a corpus: search finds titles, open shows a document, then answer.

Reward is the exact match or the F1 of the answer.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from random import Random
from typing import Any, ClassVar

from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import one_of, whole_number
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.search.index import Index, load_index
from asyncrl.envs.search.questions import Question, make_question
from asyncrl.envs.search.reward import exact_match, extract, f1
from asyncrl.envs.search.world import SENTENCES, make_world
from asyncrl.envs.tools import ToolError, answer_calls, call_message, say, schema
from asyncrl.types import Message, Task

RULES = "Answer the question. Tool search finds documents, tool open shows one. Then write the answer alone."
QUERY_CHARACTERS = 500


class Search(ProceduralEnv):
    """`level` is the number of facts to look up (1 to 3) in an invented world of `size` documents.

    `world` is the seed of that world; -1 gives each task a world of its own, so that no fact can be learned by heart.
    With `corpus`, a file of JSON lines {"title", "text"}, questions come from tasks' data: "question" and "answers",
    also called "golden_answers", or one "answer".
    """

    blocking: ClassVar[bool] = False
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tools: ClassVar[list[dict[str, Any]]] = [
        schema("search", "Find documents by their words.", query="string"),
        schema("open", "Show a document by its title.", title="string"),
    ]

    def __init__(
        self,
        task: Task,
        level: int = 1,
        size: int = 400,
        world: int = 0,
        results: int = 3,
        grade: str = "exact",
        max_turns: int = 0,
        corpus: str = "",
    ) -> None:
        super().__init__(task, level)
        whole_number("size", size, 40, 100_000)
        self.results = whole_number("results", results, 1, 20)
        self.grade = one_of("grade", grade, ("exact", "f1"))
        self.max_turns = whole_number("max_turns", max_turns, 0, 64) or 2 * self.level + 2
        if whole_number("world", world, -1, 2**31 - 1) == -1:
            world = task.seed
        self.source = (corpus, world, size)
        self.index: Index
        self.question: Question
        if corpus:
            self.question = _given(task)
        else:
            made = make_world(world, size)
            self.question = self.draw(lambda rng: make_question(made, self.level, rng), lambda q: q.text)
        self.turns = self.calls = 0

    async def reset(self) -> list[Message]:
        corpus, world, size = self.source
        self.index = await asyncio.to_thread(load_index, corpus, world, size)
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self.question.text}]

    async def step(self, action: Action) -> Step:
        """Carry out the calls of a turn; a turn without calls is the final answer."""
        self.turns += 1
        if action.tool_calls or action.parse_errors:
            components = {
                "calls": float(len(action.tool_calls)),
                "malformed": float(bool(action.parse_errors)),
            }
            if self.turns >= self.max_turns:
                return Step(done=True, success=False, components=components)
            messages = await answer_calls(action, self.tools, {"search": self._search, "open": self._open})
            return Step(messages, components=components)
        answer = extract(action.content)
        exact, overlap = exact_match(answer, self.question.answers), f1(answer, self.question.answers)
        return Step(
            reward=exact if self.grade == "exact" else overlap,
            done=True,
            success=exact == 1.0,
            components={"exact": exact, "f1": overlap},
        )

    def oracle(self, messages: list[Message]) -> Message:
        """Search for the current entity, open its document, read the fact, continue from there."""
        hop, opened = divmod(sum(m["role"] == "tool" for m in messages), 2)
        if not self.question.path:
            raise NotImplementedError
        if hop and not opened:
            entity = _read(messages[-1]["content"], *self.question.path[hop - 1])
        else:
            entity = self.question.path[hop][0]
        if hop == len(self.question.path):
            return say(entity)
        return call_message(("open", {"title": entity}) if opened else ("search", {"query": entity}))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Search for words of the question, open a result, answer with words of its text."""
        tool = [m["content"] for m in messages if m["role"] == "tool"]
        if not tool:
            words = self.question.text.removeprefix("What is ").rstrip("?").split()
            start = rng.randrange(len(words))
            return call_message(("search", {"query": " ".join(words[start : start + 2])}))
        if len(tool) == 1:
            titles = [line.partition(":")[0] for line in tool[0].splitlines()]
            return call_message(("open", {"title": rng.choice(titles)}))
        names = [word.strip(".") for word in tool[-1].split() if word[:1].isupper() or word[:1].isdigit()]
        start = rng.randrange(len(names)) if names else 0
        return say(" ".join(names[start : start + rng.randint(1, 2)]) or "unknown")

    def problem_key(self) -> str:
        return self.question.text

    def _search(self, query: str) -> str:
        if len(query) > QUERY_CHARACTERS:
            raise ToolError(f"a query has at most {QUERY_CHARACTERS} characters")
        found = self.index.search(query, self.results)
        return (
            "\n".join(f"{d.title}: {d.text.partition('. ')[0].rstrip('.')}." for d in found)
            or "nothing found"
        )

    def _open(self, title: str) -> str:
        document = self.index.open(title)
        if document is None:
            raise ToolError(f"there is no document {title[:80]!r}")
        return document.text


def _read(text: str, entity: str, relation: str) -> str:
    """Return the fact that a document states."""
    before, after = SENTENCES[relation].format(entity, "\0").split("\0")
    return text[text.index(before) + len(before) :].partition(after)[0]


def _given(task: Task) -> Question:
    text, answers = task.data.get("question"), task.data.get("answers", task.data.get("golden_answers"))
    if answers is None and isinstance(task.data.get("answer"), str):
        answers = [task.data["answer"]]
    if not isinstance(text, str) or not isinstance(answers, list) or not answers:
        raise ValueError(
            f"corpus: task {task.id!r} needs data with a question and a list of answers, got {task.data!r}"
        )
    if not all(isinstance(answer, str) for answer in islice(answers, 100)):
        raise ValueError(f"corpus: task {task.id!r}: answers must be texts, got {answers!r:.200}")
    return Question(text, tuple(answers))
