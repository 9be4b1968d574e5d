"""Calls a user's reward function, in a process of its own, which its time limit may end.

    PYTHON -P asyncrl/rewards/user_main.py

The first line of its input is `{"path": [...], "function"}`: where modules are searched, and the import path. Then
`{"id", "timeout_s", "items"}` are answered by `{"id", "values"}` or `{"id", "error"}`. Plain functions run one after
the other in the main thread, where signals work; coroutines run together.
"""

import asyncio
import inspect
import json
import os
import sys
import threading
import time
import traceback
from typing import Any


def main() -> None:
    """Serve until stdin closes."""
    out = os.fdopen(os.dup(1), "w")
    # What the function prints is no answer.
    os.dup2(2, 1)
    first = json.loads(sys.stdin.readline())
    sys.path[:] = first["path"]
    from asyncrl.import_path import load_object
    from asyncrl.rewards.signatures import Signature

    function = load_object("reward", first["function"])
    signature = Signature(function)
    lock = threading.Lock()

    def answer(request: dict[str, Any], reply: dict[str, Any]) -> None:
        with lock:
            print(json.dumps({"id": request["id"], **reply}), file=out, flush=True)

    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    print("ready", file=out, flush=True)
    if not inspect.iscoroutinefunction(function):
        for line in sys.stdin:
            request = json.loads(line)
            answer(request, asyncio.run(_called(function, signature, request["items"])))
        return
    asyncio.run(_serve(function, signature, answer))


def _end_with_parent(parent: int) -> None:
    """End this process when the one that asks is gone, even if the function hangs."""
    while os.getppid() == parent:
        time.sleep(2.0)
    os._exit(1)


async def _serve(function: Any, signature: Any, answer: Any) -> None:
    running: set[asyncio.Task[None]] = set()

    async def one(request: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(request["timeout_s"]):
                reply = await _called(function, signature, request["items"])
        except TimeoutError:
            reply = {"error": f"did not return within {request['timeout_s']:g} s"}
        answer(request, reply)

    while line := await asyncio.to_thread(sys.stdin.readline):
        task = asyncio.create_task(one(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)


async def _called(function: Any, signature: Any, items: list[dict[str, Any]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    try:
        if signature.is_batch:
            given = signature.arguments(items)
            found = function(**given)
            found = await found if inspect.isawaitable(found) else found
            values = _listed(found)
        else:
            calls = [signature.arguments([item]) for item in items]
            given = calls[0]
            results = [function(**call) for call in calls]
            if any(inspect.isawaitable(one) for one in results):
                results = list(await asyncio.gather(*results))
            values = [_plain(one) for one in results]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        message = f"raised {type(error).__name__}: {error}{where}"[:2000]
        if isinstance(error, TypeError | AttributeError | KeyError | IndexError):
            # What it was given is often of another kind than its writer thought.
            message += f"; it was called with {_kinds(given, signature.names)}"
        return {"error": message}
    return {"values": values}


def _kinds(given: dict[str, Any], names: list[str]) -> str:
    """Return the kinds of the values of a call, of lists with that of their items."""

    def kind(value: Any) -> str:
        inner = f" of {type(value[0]).__name__}" if isinstance(value, list) and value else ""
        return type(value).__name__ + inner

    return ", ".join(f"{name}: {kind(given[name])}" for name in names if name in given) or "no argument"


def _listed(found: Any) -> Any:
    if hasattr(found, "tolist"):
        found = found.tolist()
    if isinstance(found, str | bytes | dict) or not hasattr(found, "__iter__"):
        return {"not a list": repr(found)[:200]}
    return [_plain(one) for one in found]


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: a number, None, a table of numbers; `{"value": text}` for anything else."""
    if hasattr(value, "item") and not isinstance(value, dict):
        try:
            value = value.item()
        except (ValueError, RuntimeError):
            return {"no number": repr(value)[:200]}
    if value is None or isinstance(value, bool | int | float):
        return repr(value) if isinstance(value, int) and abs(value) > 2**60 else value
    if isinstance(value, dict):
        return {"table": {str(key): _plain(one) for key, one in value.items()}}
    try:
        return float(value) if not isinstance(value, str) else {"no number": repr(value)[:200]}
    except (TypeError, ValueError, OverflowError):
        return {"no number": repr(value)[:200]}


if __name__ == "__main__":
    main()
