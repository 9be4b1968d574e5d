"""A small domain in tau2's shape: a lending library whose customers hold a card of their own."""

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class ToolAction:
    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"
    compare_args: list[str] | None = None


@dataclass
class Assertion:
    """That a book is out."""

    title: str


@dataclass
class Criteria:
    actions: list[ToolAction] = field(default_factory=list)
    communicate_info: list[str] = field(default_factory=list)
    env_assertions: list[Assertion] = field(default_factory=list)
    reward_basis: list[str] = field(default_factory=list)


@dataclass
class Start:
    initialization_data: dict[str, Any] | None = None
    initialization_actions: list[Any] | None = None
    message_history: list[Any] | None = None


@dataclass
class LibraryTask:
    id: str
    wish: str
    evaluation_criteria: Criteria
    initial_state: Start | None = None
    ticket: str = ""
    user_scenario: str = ""


@dataclass
class Tool:
    name: str
    openai_schema: dict[str, Any]


def tool(name, description, **properties):
    parameters = {
        "type": "object",
        "properties": {key: {"type": kind} for key, kind in properties.items()},
        "required": list(properties),
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return Tool(name, {"type": "function", "function": function})


class Library:
    def __init__(self):
        self.books = {"Emma": None, "Ulysses": None}
        self.fines = {"ann": 2}
        self.card_shown = False

    def get_policy(self):
        return "Lend only when the card was shown. Say what fine there is."

    def get_tools(self):
        return [
            tool("lend", "Lend a book.", title="string", to="string"),
            tool("fine", "A fine.", of="string"),
        ]

    def use_tool(self, tool_name, **arguments):
        return getattr(self, f"_{tool_name}")(**arguments)

    def use_user_tool(self, tool_name, **arguments):
        assert tool_name == "show_card"
        self.card_shown = True

    def set_state(self, initialization_data, initialization_actions, message_history):
        self.fines |= initialization_data or {}

    def get_db_hash(self):
        state = json.dumps([self.books, self.fines, self.card_shown], sort_keys=True)
        return hashlib.sha256(state.encode()).hexdigest()

    def _lend(self, title, to):
        if title not in self.books:
            raise ValueError(f"no book {title}")
        if not self.card_shown:
            raise ValueError("no card was shown")
        self.books[title] = to
        return {"lent": title}

    def _fine(self, of):
        return self.fines.get(of, 0)


class Customer:
    """Shows the card at once, and stops when told a number."""

    def __init__(self, task, library):
        self.task, self.library = task, library

    def respond(self, messages):
        if not messages:
            self.library.use_user_tool("show_card")
            return self.task.wish
        said = messages[-1]["content"]
        return "Thanks. ###STOP###" if any(c.isdigit() for c in said) else "And my fine?"


class SlowCustomer(Customer):
    async def respond(self, messages):
        return super().respond(messages)


SHOW = ToolAction("show_card", {}, "user")


def lending(title, fine, start=None):
    actions = [SHOW, ToolAction("lend", {"title": title, "to": "ann"}), ToolAction("fine", {"of": "ann"})]
    return LibraryTask(f"lend-{title}", f"I want {title}.", Criteria(actions, [str(fine)]), start)


class Domain:
    user = Customer

    def get_tasks(self):
        raised = Start(initialization_data={"ann": 7})
        return [lending("Emma", 2), lending("Ulysses", 7, raised)]

    def get_environment(self):
        return Library()

    def get_user(self, task, environment):
        return self.user(task, environment)


class SlowDomain(Domain):
    user = SlowCustomer


class SoloDomain(Domain):
    """No user, splits of its own and a reward of its own."""

    def get_tasks(self):
        criteria = Criteria([ToolAction("fine", {"of": "ann"})], ["2"])
        return [LibraryTask(str(i), "", criteria, ticket="What is ann's fine?") for i in range(4)]

    def get_tasks_split(self):
        return {"train": ["0", "1", "2"], "test": ["3"]}

    def get_user(self, task, environment):
        return None

    async def get_reward(self, task, environment, messages):
        return float("2" in messages[-1]["content"]), {"length": float(len(messages))}


class DualLibrary(Library):
    """The desk and the customer act on what is theirs, and the desk sees a card only once the two are in step."""

    user_tools = True

    def __init__(self):
        super().__init__()
        self.card_seen = False

    def get_user_tools(self):
        return [tool("show_card", "Show your card.")]

    def sync_tools(self):
        self.card_seen = self.card_shown

    def run_env_assertion(self, assertion, raise_assertion_error):
        return self.books[assertion.title] is not None

    def _lend(self, title, to):
        if not self.card_seen:
            raise ValueError("no card was seen")
        return super()._lend(title, to)


class DualDomain:
    """Has no user of its own, so that a language model plays it. A task is named after what it is scored by."""

    def get_tasks(self):
        lend = ToolAction("lend", {"title": "Emma", "to": "ann"}, compare_args=["title"])
        return [
            LibraryTask(
                rule,
                "",
                Criteria([SHOW, lend], ["2"], [Assertion("Emma")], [rule]),
                user_scenario="You want Emma. You hold a card.",
            )
            for rule in ("ENV_ASSERTION", "ACTION", "COMMUNICATE", "NL_ASSERTION")
        ]

    def get_environment(self):
        return DualLibrary()


class TerseDomain(DualDomain):
    """Tells its user so little that a tiny model's context holds it."""

    def get_user_guidelines(self, tools):
        return "Ask for it."
