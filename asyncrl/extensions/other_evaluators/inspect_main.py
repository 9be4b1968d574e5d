"""Has inspect-ai evaluate a model behind a URL. It runs in an environment of its own, and knows nothing of asyncrl.

    python inspect_main.py REQUEST.json SAMPLES.jsonl

The API key is `OPENAI_API_KEY`. SAMPLES gets a line for each sample and epoch.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

SHARE = "accuracy"
"""The metric of inspect-ai whose scorer says whether an answer is right."""


def main(request: dict, out: Path) -> None:
    import inspect_ai
    from inspect_ai.model import GenerateConfig, get_model

    with out.open("w", encoding="utf-8") as file:
        for name, spec in request["tasks"].items():
            config = GenerateConfig(
                max_tokens=request["max_tokens"],
                temperature=request["temperature"],
                max_connections=request["at_once"],
            )
            model = get_model(
                "openai/policy",
                config=config,
                base_url=f"{request['url']}/v1",
                api_key=os.environ["OPENAI_API_KEY"],
                responses_api=False,
                memoize=False,
            )
            try:
                logs = inspect_ai.eval(
                    _one_task(spec),
                    model=model,
                    limit=request["limit"],
                    epochs=request["samples"],
                    # A sample that fails is one sample that fails.
                    fail_on_error=False,
                    display="none",
                    log_level="warning",
                    log_dir=str(out.parent / "inspect"),
                )
            except Exception as error:
                # inspect-ai tells its own errors on a console that `display` has silenced.
                raise SystemExit(f"{spec}: {getattr(error, 'message', error)}") from error
            (log,) = logs
            if log.status != "success":
                raise SystemExit(f"{spec}: {log.error.message if log.error else log.status}")
            shares = _shares(log)
            for sample in log.samples or ():
                file.write(json.dumps({"task": name, **_row(sample, shares)}) + "\n")


def _one_task(spec: str) -> str:
    """Return FILE.py as FILE.py@TASK; inspect-ai takes a file's path for a pattern, which cannot be absolute."""
    import inspect_ai

    if not spec.endswith(".py"):
        return spec
    file = Path(spec)
    names = [one.name for one in inspect_ai.list_tasks(glob.escape(file.name), root_dir=file.parent)]
    if len(names) != 1:
        said = ", ".join(names) or "none"
        raise SystemExit(f"{spec}: has {len(names)} tasks ({said}); give one, as in FILE.py@TASK")
    return f"{spec}@{names[0]}"


def _shares(log: Any) -> dict[str, bool]:
    """Return of each scorer, in their order, whether its mean is a share of right answers."""
    found: dict[str, bool] = {}
    for score in log.results.scores if log.results else ():
        found[score.name] = found.get(score.name, False) or SHARE in score.metrics
    return found


def _row(sample: Any, shares: dict[str, bool]) -> dict[str, Any]:
    scores = sample.scores or {}
    first = next((name for name in shares if name in scores), next(iter(scores), ""))
    numbers = {
        key: number for name, score in scores.items() for key, number in _numbers(name, score.value).items()
    }
    usage = (sample.model_usage or {}).values()
    return {
        "id": str(sample.id),
        "epoch": sample.epoch,
        "hash": _digest(sample),
        "reward": next((number for key, number in numbers.items() if key.partition(",")[0] == first), None),
        "verdict": bool(first) and shares.get(first, False),
        "components": numbers,
        "answer": scores[first].answer if first else None,
        "error": sample.error.message if sample.error else "",
        "limit": sample.limit.type if sample.limit else "",
        "turns": sum(message.role == "assistant" for message in sample.messages),
        "tokens": sum(one.output_tokens for one in usage),
        "read_tokens": sum(one.input_tokens for one in usage),
        "wall_s": sample.total_time,
        "messages": [{"role": message.role, "content": message.text} for message in sample.messages],
    }


def _digest(sample: Any) -> str:
    asked = sample.input if isinstance(sample.input, str) else [one.text for one in sample.input]
    return hashlib.sha256(json.dumps([asked, sample.target, sample.choices]).encode()).hexdigest()[:16]


def _numbers(name: str, value: Any) -> dict[str, float]:
    """Return the numbers of a score; those of a table are named SCORER,KEY."""
    from inspect_ai.scorer import value_to_float

    convert = value_to_float()
    if isinstance(value, dict):
        return {f"{name},{key}": float(convert(one)) for key, one in value.items()}
    if isinstance(value, list):
        return {f"{name},{place}": float(convert(one)) for place, one in enumerate(value)}
    return {name: float(convert(value))}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
