"""Has lm-eval and inspect-ai evaluate one model through several servers; prints what each found, as JSON.

    python benchmark_clients.py FOLDER TOKENIZER NAME=URL ...

It runs in an environment of its own (`tests/benchmark_env.py`). FOLDER gets the task files. The API key is in the
environment.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

WAYS = ("north", "south", "east", "west")
GOALS = [{"goal": f"goal {a} {b}", "answer": a} for a in WAYS for b in WAYS]
CHOOSE = """
task: choose
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{goal}} say"
doc_to_choice: [" north", " south", " east", " west"]
doc_to_target: "{{['north', 'south', 'east', 'west'].index(answer)}}"
metric_list: [{metric: acc}]
"""
WRITE = """
task: write
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: generate_until
doc_to_text: "{{goal}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 12, do_sample: true, temperature: 1.0}
metric_list: [{metric: exact_match}]
filter_list:
  - name: first_letter
    filter: [{function: regex, regex_pattern: "([a-z])"}, {function: take_first}]
"""


def lm_eval_finds(url, folder, tokenizer):
    """Return the scores of both tasks, and what was generated and how likely each choice is."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    model = {
        "model": "policy",
        "base_url": f"{url}/v1/completions",
        "tokenizer": tokenizer,
        "num_concurrent": 4,
        "max_length": 256,
        "seed": 3,
    }
    found = lm_eval.simple_evaluate(
        "local-completions", model, tasks=["choose", "write"], task_manager=TaskManager(include_path=str(folder)),
        bootstrap_iters=0,
    )  # fmt: skip
    samples = found["samples"]
    return {
        "acc": found["results"]["choose"]["acc,none"],
        "loglikelihoods": [[one[0] for one in s["filtered_resps"]] for s in samples["choose"]],
        "texts": [s["resps"][0][0] for s in samples["write"]],
    }


def inspect_finds(url, key, folder):
    """Return by provider the score and the texts, sampled with a seed where the provider's API has one."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes

    seeded = GenerateConfig(max_tokens=12, temperature=1.0, seed=3)
    greedy = GenerateConfig(max_tokens=12, temperature=0.0)
    shared = {"api_key": key, "memoize": False}
    models = {
        "openai": get_model(
            "openai/policy", config=seeded, base_url=f"{url}/v1", responses_api=False, **shared
        ),
        "responses": get_model(
            "openai/policy", config=greedy, base_url=f"{url}/v1", responses_api=True, **shared
        ),
        # For models it does not know it leaves out the temperature.
        "anthropic": get_model(
            "anthropic/policy", config=greedy, base_url=url, extra_body={"temperature": 0.0}, **shared
        ),
    }
    task = Task(dataset=[Sample(input=row["goal"], target="o") for row in GOALS], scorer=includes())
    found = {}
    for name, model in models.items():
        (log,) = eval(task, model=model, display="none", log_dir=str(folder / "logs"), log_level="error")
        assert log.status == "success", log.error
        found[name] = {
            "accuracy": log.results.scores[0].metrics["accuracy"].value,
            "texts": [sample.output.completion for sample in log.samples],
        }
    return found


def main(folder, tokenizer, servers):
    rows = folder / "goals.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in GOALS))
    for name, text in (("choose", CHOOSE), ("write", WRITE)):
        (folder / f"{name}.yaml").write_text(text.replace("FILE", str(rows)))
    key = os.environ["OPENAI_API_KEY"]
    found = {}
    with contextlib.redirect_stdout(sys.stderr):
        for name, url in servers.items():
            found[name] = {
                "lm_eval": lm_eval_finds(url, folder, tokenizer),
                **inspect_finds(url, key, folder),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], dict(word.split("=", 1) for word in sys.argv[3:]))
