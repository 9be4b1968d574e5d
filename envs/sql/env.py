"""Answer a question about a database: look at its schema, query it, give the result.

The database is read-only. A turn without tool calls is the final answer: a query, whose result counts, or the values.
Reward 1 when the rows are the right ones.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, ClassVar

from asyncrl.agent_time import granted, needed_s
from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.sql.data import CITIES, NAMES, PRODUCTS, SCHEMA, make
from asyncrl.envs.sql.database import Database, QueryError, Result
from asyncrl.envs.sql.reward import as_query, as_rows, same_rows
from asyncrl.envs.tools import Handler, ToolError, answer_calls, call_message, say, schema
from asyncrl.types import Message, Task

RULES = "Answer the question about the database: with the values, a row a line, cells apart by |, or with a query."
CELL_CHARACTERS = 60


class Sql(ProceduralEnv):
    """Answer questions about a database that can only be read.

    `level` 1 (one table) to 4 (subqueries); `max_rows` of a result are shown; `time_limit_s` for each query."""

    tools: ClassVar[list[dict[str, Any]]] = [
        schema("schema", "Show the CREATE TABLE statements."),
        schema("query", "Run one SQLite query and show its first rows.", sql="string"),
    ]

    def __init__(
        self,
        task: Task,
        level: int = 1,
        max_turns: int = 6,
        max_rows: int = 20,
        time_limit_s: float = 2.0,
    ) -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 1, 64)
        self.max_rows = whole_number("max_rows", max_rows, 1, 1000)
        if not 0.05 <= time_limit_s <= 30:
            raise ValueError(f"time_limit_s: must be from 0.05 to 30, got {time_limit_s}")
        self.time_limit_s = time_limit_s
        self.problem = self.draw(lambda rng: make(rng, self.level), lambda p: f"{p.question} {p.rows}")
        self.database = Database(self.problem.image)
        self.turns = 0

    def least_step_s(self) -> float:
        return needed_s(self.time_limit_s)

    def reset(self) -> list[Message]:
        return [{"role": "system", "content": RULES}, {"role": "user", "content": self.problem.question}]

    async def step(self, action: Action) -> Step:
        """Answer the calls of a turn, all at once; a turn without calls is the final answer."""
        self.turns += 1
        if action.tool_calls or action.parse_errors:
            handlers: dict[str, Handler] = {"schema": lambda: SCHEMA.strip(), "query": self._query}
            messages = await answer_calls(action, self.tools, handlers)
            errors = sum(m["content"].startswith("error: ") for m in messages)
            components = {"calls": float(len(action.tool_calls)), "errors": float(errors)}
            if self.turns >= self.max_turns:
                return Step(done=True, success=False, components=components)
            return Step(messages, components=components)
        correct = await self._correct(action.content)
        return Step(reward=float(correct), done=True, success=correct, components={"answer": float(correct)})

    def close(self) -> None:
        self.database.close()

    def oracle(self, messages: list[Message]) -> Message:
        """Query, then answer with a single value as it is shown, or with the query."""
        if messages[-1]["role"] != "tool":
            return call_message(("query", {"sql": self.problem.sql}))
        single = len(self.problem.rows) == len(self.problem.rows[0]) == 1
        return say(messages[-1]["content"].splitlines()[-1] if single else self.problem.sql)

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Ask for a random value of one table, and answer with what was shown last."""
        if messages[-1]["role"] == "tool":
            return say(messages[-1]["content"].splitlines()[-1])
        sql = rng.choice(
            [
                f"SELECT count(*) FROM customers WHERE city = '{rng.choice(CITIES)}'",
                f"SELECT count(*) FROM products WHERE price > {rng.randint(20, 80)}",
                f"SELECT price FROM products WHERE name = '{rng.choice(PRODUCTS)}'",
                f"SELECT city FROM customers WHERE name = '{rng.choice(NAMES)}'",
            ]
        )
        return call_message(("query", {"sql": sql}))

    def problem_key(self) -> str:
        return f"{self.problem.question} {self.problem.rows}"

    def secrets(self) -> tuple[str, ...]:
        """The expert's query."""
        return (self.problem.sql,)

    async def _query(self, sql: str) -> str:
        try:
            return show(await self._result(sql, self.max_rows))
        except QueryError as error:
            raise ToolError(str(error)) from None

    async def _result(self, sql: str, max_rows: int) -> Result:
        """Run a query within its limit and what is left of the step. Raises `QueryError`."""
        async with granted(self.time_limit_s) as grant:
            if not grant.enough:
                raise QueryError("no time is left in this turn; the query was not run")
            return await asyncio.to_thread(self.database.query, sql, max_rows, grant.limit_s)

    async def _correct(self, content: str) -> bool:
        gold = self.problem.rows
        if not (sql := as_query(content)):
            return same_rows(as_rows(content), gold, self.problem.ordered)
        try:
            result = await self._result(sql, len(gold))
        except QueryError:
            return False
        return not result.more and same_rows(result.rows, gold, self.problem.ordered)


def show(result: Result) -> str:
    """Return a result as the model sees it: the columns, then a row a line."""
    lines = [" | ".join(result.columns)]
    lines += [" | ".join(_cell(value) for value in row) for row in result.rows]
    if not result.rows:
        lines.append("(no rows)")
    return "\n".join(lines + (["... more rows"] if result.more else []))


def _cell(value: Any) -> str:
    text = "NULL" if value is None else value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARACTERS else f"{text[:CELL_CHARACTERS]}..."
