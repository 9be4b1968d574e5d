"""Has lm-eval evaluate a model behind a URL. It runs in lm-eval's own environment, and knows nothing of asyncrl.

    python lm_eval_main.py REQUEST.json SAMPLES.jsonl

The API key is `OPENAI_API_KEY`. SAMPLES gets a line for each question and filter of the answers.
"""

from __future__ import annotations

import difflib
import json
import sys
from pathlib import Path
from typing import Any


def main(request: dict, out: Path) -> None:
    import lm_eval
    from lm_eval.tasks import TaskManager

    model = {
        "model": "policy",
        "base_url": f"{request['url']}/v1/completions",
        "tokenizer": request["tokenizer"],
        "tokenizer_backend": "huggingface",
        "num_concurrent": request["at_once"],
        "max_length": request["max_length"],
        "seed": request["seed"],
    }
    manager = TaskManager(include_path=request["include"] or None)
    folder = out.parent / "tasks"
    folder.mkdir(exist_ok=True)
    found = lm_eval.simple_evaluate(
        "local-completions",
        model,
        tasks=[
            _task(manager, folder, name, files, request["fewshot"])
            for name, files in request["tasks"].items()
        ],
        num_fewshot=request["fewshot"],
        limit=request["limit"],
        apply_chat_template=request["chat"],
        task_manager=manager,
        bootstrap_iters=0,
    )
    if found is None:
        raise SystemExit("lm-eval returned nothing")
    with out.open("w", encoding="utf-8") as file:
        for task, samples in found["samples"].items():
            fewshot = found["n-shot"].get(task)
            for sample in samples:
                row = {
                    "task": task,
                    "fewshot": fewshot,
                    "doc": sample["doc_id"],
                    "hash": sample["doc_hash"],
                    "filter": sample["filter"],
                    "prompt": str(sample["arguments"][0][0]),
                    "target": str(sample["target"]),
                    "responses": [str(one[0]) for one in sample["resps"]],
                    "filtered": [str(one) for one in sample["filtered_resps"]],
                    "metrics": {
                        name: float(sample[name])
                        for name in sample["metrics"]
                        if isinstance(sample.get(name), int | float)
                    },
                }
                file.write(json.dumps(row) + "\n")


def _task(manager: Any, folder: Path, name: str, files: dict[str, str], fewshot: int | None) -> str:
    """Return what names a task: the name, or a file of it with its rows from files in place of the hub's.

    files: by split. fewshot: examples that were asked for; None for the task's own number.
    """
    if name not in manager.all_tasks:
        close = difflib.get_close_matches(name, manager.all_tasks, n=1)
        raise SystemExit(f"lm-eval has no task {name!r}" + (f"; did you mean {close[0]!r}?" if close else ""))
    if not files:
        return name
    known = manager.task_index[name]
    examples = fewshot if fewshot is not None else (known.cfg or {}).get("num_fewshot") or 0
    if examples and "train" not in files:
        raise SystemExit(
            f"lm-eval/{name} shows {examples} examples before a question; give their rows by --examples FILE, or "
            "--fewshot 0"
        )
    split = "train" if "train" in files else None
    own = {
        "include": str(known.yaml_path),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "validation_split": None,
        "training_split": split,
        "fewshot_split": split,
    }
    file = folder / f"{name}.yaml"
    # JSON is YAML.
    file.write_text(json.dumps(own), encoding="utf-8")
    return str(file)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
