"""Order something in a web shop, in a real headless Chromium.

An observation is the page's accessibility tree; elements are named by references such as e5. The first order ends the
episode, with reward 1 if it is the requested one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import Any, ClassVar

from asyncrl.agent_time import granted, needed_s
from asyncrl.env.protocol import Action, Step
from asyncrl.env.settings import whole_number
from asyncrl.envs.browser.chromium import ACTION_TIMEOUT_S, Host, Tab, find_chromium, shared_host
from asyncrl.envs.browser.pages import answer
from asyncrl.envs.browser.shop import Shop, make_shop
from asyncrl.envs.procedural import ProceduralEnv
from asyncrl.envs.tools import Handler, ToolError, answer_calls, call_message, schema
from asyncrl.errors import ConfigError
from asyncrl.types import Message, Task

RULES = "Do what is asked in the web shop, with the tools."
TEXT_CHARACTERS = 200
TURNS = {1: 4, 2: 10, 3: 16}
ELEMENT = re.compile(r'- (\w+) "([^"]*)"[^\n]*?\[ref=(e\d+)\]')


class Browser(ProceduralEnv):
    """`level` 1: order an article; 2: some of it for somebody; 3: the cheapest of a colour, with a coupon.

    `chromium` names the browser's executable; by default it is searched for.
    """

    blocking: ClassVar[bool] = False
    levels: ClassVar[tuple[int, ...]] = (1, 2, 3)
    tools: ClassVar[list[dict[str, Any]]] = [
        schema("click", "Click an element.", element="string?", ref="string"),
        schema("type", "Write a text into a field.", element="string?", ref="string", text="string"),
        schema("select", "Choose an option of a list.", element="string?", ref="string", option="string"),
        schema("goto", "Open a page by its name, such as home.", page="string"),
    ]

    @classmethod
    def missing(cls) -> str:
        """Return what prevents it from starting here, or an empty text."""
        try:
            find_chromium()
        except ConfigError as error:
            return f"a browser: {error}"
        return ""

    def __init__(self, task: Task, level: int = 1, max_turns: int = 0, chromium: str = "") -> None:
        super().__init__(task, level)
        self.max_turns = whole_number("max_turns", max_turns, 0, 128) or TURNS[self.level]
        self.shop: Shop = self.draw(lambda rng: make_shop(self.level, rng), lambda shop: shop.key)
        self.host: Host = shared_host(find_chromium(chromium))
        self.tab: Tab | None = None
        self.turns = 0

    def least_step_s(self) -> float:
        return needed_s(ACTION_TIMEOUT_S)

    async def reset(self) -> list[Message]:
        self.tab = await self.host.open(partial(answer, self.shop))
        page = await self.tab.snapshot()
        return [
            {"role": "system", "content": RULES},
            {"role": "user", "content": f"{self.shop.goal}\n{page}"},
        ]

    async def step(self, action: Action) -> Step:
        """Carry out the calls of a turn in order, until there is an order."""
        assert self.tab is not None
        self.turns += 1
        handlers: dict[str, Handler] = {
            "click": self._click,
            "type": self._type,
            "select": self._select,
            "goto": self._goto,
        }
        messages: list[Message] = []
        for call in action.tool_calls:
            messages += await answer_calls(Action("", (call,)), self.tools, handlers)
            if self.shop.orders:
                break
        messages += await answer_calls(Action("", (), action.parse_errors), self.tools, handlers)
        components = {"calls": float(len(action.tool_calls)), "malformed": float(bool(action.parse_errors))}
        if self.shop.orders:
            right = self.shop.orders[0] == self.shop.wanted
            return Step(
                reward=float(right), done=True, success=right, components={**components, "ordered": 1.0}
            )
        if self.turns >= self.max_turns:
            return Step(done=True, success=False, components=components)
        if not messages:
            messages = [{"role": "user", "content": "Use a tool."}]
        return Step(messages, components=components)

    async def close(self) -> None:
        if self.tab is not None:
            await self.tab.close()

    def oracle(self, messages: list[Message]) -> Message:
        """Go to the article as a customer would, reading references from the page."""
        moves = self._moves(messages)
        done = sum(m["role"] == "tool" for m in messages)
        return moves[min(done, len(moves) - 1)](str(messages[-1]["content"]))

    def random_policy(self, messages: list[Message], rng: Random) -> Message:
        """Click, type into or select a random element."""
        role, name, ref = rng.choice(ELEMENT.findall(str(messages[-1]["content"])) or [("link", "", "e1")])
        element = {"element": name, "ref": ref}
        if role == "textbox":
            return call_message(("type", {**element, "text": rng.choice(self.shop.goal.strip(".").split())}))
        if role == "combobox":
            return call_message(("select", {**element, "option": str(rng.randint(1, 5))}))
        return call_message(("click", element))

    def problem_key(self) -> str:
        return self.shop.key

    def _moves(self, messages: list[Message]) -> list[Callable[[str], Message]]:
        wanted = self.shop.wanted
        article = next(a for a in self.shop.articles if a.id == wanted.article)
        if self.shop.level == 1:
            return [_click("link", article.name), _click("button", "Order")]
        if self.shop.level == 2:
            return [
                _type("Search", article.name),
                _click("button", "Find"),
                _click("link", article.name),
                lambda page: call_message(
                    ("select", {**_element(page, "combobox", "Count"), "option": str(wanted.count)})
                ),
                _type("Name", wanted.person),
                _click("button", "Order"),
            ]
        shown = " ".join(str(m["content"]) for m in messages)
        coupon = re.search(r"coupon (\w+) takes", shown)
        return [
            _click("link", "News"),
            lambda page: call_message(("goto", {"page": "home"})),
            _click("button", "Menu"),
            _click("link", article.kind),
            _click("link", article.name),
            _type("Name", wanted.person),
            _type("Coupon", coupon.group(1) if coupon else ""),
            _click("button", "Order"),
        ]

    async def _click(self, ref: str, element: str = "") -> str:
        return await self._shown(lambda tab, limit_s: tab.click(ref, limit_s))

    async def _type(self, ref: str, text: str, element: str = "") -> str:
        if len(text) > TEXT_CHARACTERS:
            raise ToolError(f"a text has at most {TEXT_CHARACTERS} characters")
        return await self._shown(lambda tab, limit_s: tab.type(ref, text, limit_s))

    async def _select(self, ref: str, option: str, element: str = "") -> str:
        return await self._shown(lambda tab, limit_s: tab.select(ref, option, limit_s))

    async def _goto(self, page: str) -> str:
        if not re.fullmatch(r"[a-z]{1,20}(\?[\w=&%+-]{0,100})?", page):
            raise ToolError(f"{page[:80]!r} is no page of this shop")
        return await self._shown(lambda tab, limit_s: tab.goto(page))

    async def _shown(self, act: Callable[[Tab, float], Awaitable[str]]) -> str:
        """Return what an act shows. It gets the seconds that an element may take to be ready."""
        assert self.tab is not None
        async with granted(ACTION_TIMEOUT_S) as grant:
            if not grant.enough:
                raise ToolError("no time is left in this turn")
            try:
                return await act(self.tab, grant.limit_s)
            except ValueError as error:
                raise ToolError(str(error)) from error


def find(page: str, role: str, name: str) -> str:
    """Return the reference of an element in a snapshot, or an empty text."""
    return next((ref for r, n, ref in ELEMENT.findall(page) if (r, n) == (role, name)), "")


def _click(role: str, name: str) -> Callable[[str], Message]:
    return lambda page: call_message(("click", _element(page, role, name)))


def _type(name: str, text: str) -> Callable[[str], Message]:
    return lambda page: call_message(("type", {**_element(page, "textbox", name), "text": text}))


def _element(page: str, role: str, name: str) -> dict[str, str]:
    """Return the arguments that name an element. The name comes first: after it, a model finds the reference."""
    return {"element": name, "ref": find(page, role, name)}
