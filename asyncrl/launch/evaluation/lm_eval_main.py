"""Has lm-eval evaluate a model behind a URL. It runs in lm-eval's own environment, and knows nothing of asyncrl.

    python lm_eval_main.py REQUEST.json SAMPLES.jsonl

The API key is `OPENAI_API_KEY`. SAMPLES gets a line for each question and filter of the answers.
"""

import json
import sys
from pathlib import Path


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
    found = lm_eval.simple_evaluate(
        "local-completions",
        model,
        tasks=[_with_files(name, files) for name, files in request["tasks"].items()],
        num_fewshot=request["fewshot"],
        limit=request["limit"],
        apply_chat_template=request["chat"],
        task_manager=TaskManager(include_path=request["include"] or None),
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


def _with_files(name: str, files: dict[str, str]) -> object:
    """Return a task with its rows from files, by split, in place of the hub's."""
    if not files:
        return name
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": files},
        "test_split": "test",
        "validation_split": None,
        "training_split": "train" if "train" in files else None,
        "fewshot_split": "train" if "train" in files else None,
    }


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
