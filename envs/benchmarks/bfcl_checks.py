"""Runs BFCL's classes and its check of dialogues in a Python that has bfcl-eval; see `multi_turn_calls.py`.

    PYTHON -I envs/benchmarks/bfcl_checks.py

A request is one of `{"classes", "missed"}`, answered by `{"tools", "missed"}` (BFCL's descriptions of functions) or
`{"refused": why}`; `{"task", "calls"}`, answered by `{"results"}` of the last list of calls, made after the others from
the task's initial state; and `{"task", "turns"}`, answered by `{"valid", "error"}`. Calls are `[name, arguments]`. This
file imports nothing of asyncrl.
"""

import itertools
import json
import os
import sys
from typing import Any

number = itertools.count()


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    # What libraries print is no answer.
    os.dup2(2, 1)
    import bfcl_eval
    from bfcl_eval.constants.default_prompts import (
        DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING,
        MAXIMUM_STEP_LIMIT,
    )
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING
    from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    folder = os.path.join(os.path.dirname(bfcl_eval.__file__), "data", "multi_turn_func_doc")

    def described(classes: list[str]) -> list[dict[str, Any]]:
        found = []
        for name in classes:
            with open(os.path.join(folder, MULTI_TURN_FUNC_DOC_FILE_MAPPING[name])) as lines:
                found += [json.loads(line) for line in lines]
        return found

    def functions(classes: list[str], missed: dict[str, list[str]]) -> dict[str, Any]:
        """Return the functions that are offered from the start, and of each turn the message that tells of others."""
        unknown = [name for name in classes if name not in MULTI_TURN_FUNC_DOC_FILE_MAPPING]
        if unknown:
            known = ", ".join(sorted(MULTI_TURN_FUNC_DOC_FILE_MAPPING))
            return {"refused": f"bfcl-eval has no class {unknown[0]!r}; it has {known}"}
        found = described(classes)
        later = {
            turn: DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING.format(
                functions=json.dumps([one for one in found if one["name"] in names])
            )
            for turn, names in missed.items()
        }
        hidden = {name for names in missed.values() for name in names}
        tools = [one for one in found if one["name"] not in hidden]
        return {"tools": tools, "missed": later, "steps": MAXIMUM_STEP_LIMIT}

    def texts(task: dict[str, Any], calls: list[list[Any]]) -> list[str]:
        """Return calls as BFCL runs them, as Python: names that are known, with literals."""
        known = {one["name"] for one in described(task["involved_classes"])}
        # A name that is not defined fails as it does there, whatever it says.
        return [f"{name if name in known else 'undefined'}(**{arguments!r})" for name, arguments in calls]

    def of_its_own(task: dict[str, Any]) -> dict[str, Any]:
        """Return the task under a name of its own: the classes' instances are kept by name."""
        kind = "long_context" if "long_context" in task["id"] else "base"
        return {**task, "id": f"{kind}_{next(number)}"}

    def forget(task: dict[str, Any]) -> None:
        made = vars(multi_turn_utils)
        for name in [name for name in made if f"_{task['id']}_" in name]:
            del made[name]

    def results(task: dict[str, Any], calls: list[list[list[Any]]]) -> list[str]:
        found: list[str] = []
        for step in calls:
            found, _ = multi_turn_utils.execute_multi_turn_func_call(
                texts(task, step),
                task["initial_config"],
                task["involved_classes"],
                "policy",
                task["id"],
                long_context="long_context" in task["id"],
            )
        return found

    def verdict(task: dict[str, Any], turns: list[list[list[list[Any]]]]) -> dict[str, Any]:
        made = [[texts(task, step) for step in turn] for turn in turns]
        found = multi_turn_checker(made, task["ground_truth"], task, "multi_turn", "policy")
        return {"valid": bool(found["valid"]), "error": str(found.get("error_type", ""))}

    print("ready", file=out, flush=True)
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        if "classes" in asked:
            answer = functions(asked["classes"], asked["missed"])
        else:
            task = of_its_own(asked["task"])
            try:
                if "calls" in asked:
                    answer = {"results": results(task, asked["calls"])}
                else:
                    answer = verdict(task, asked["turns"])
            except Exception as error:
                answer = {"refused": f"{type(error).__name__}: {error}"}
            forget(task)
        print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main()
