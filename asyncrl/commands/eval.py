"""`asyncrl eval CHECKPOINT --env NAME`"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from asyncrl.errors import AsyncRLError


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "eval",
        help="evaluate a checkpoint on an environment's held-out tasks",
        description="Mean reward, success and pass@k with intervals clustered by task. Failures of the environment "
        "or the infrastructure are counted apart and never enter a rate.",
    )
    parser.add_argument("checkpoint", help="a Hugging Face model folder or hub name")
    parser.add_argument("--env", required=True, help="environment name or import path")
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--samples", type=int, default=1, help="episodes a task; pass@k up to this k")
    parser.add_argument(
        "--recipe", help="take limits, engine and environment settings from this recipe or config.json"
    )
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    parser.add_argument(
        "--rows", type=Path, help="write each episode as a line of JSON, for `asyncrl compare`"
    )
    parser.add_argument("--fail-under", type=float, help="exit with 1 when the mean reward is below this")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.config import apply_override, load_config, parse_config
    from asyncrl.evaluation.rows import episode_rows, write_rows
    from asyncrl.import_path import absolute, search_in
    from asyncrl.launch.check import check_evaluation
    from asyncrl.launch.evaluate import play_checkpoint, summarize
    from asyncrl.launch.train import describe

    env = absolute(args.env, Path.cwd())
    fixed = (f"model.path={json.dumps(args.checkpoint)}", f"env.name={json.dumps(env)}")
    if args.recipe:
        config = load_config(args.recipe, [*fixed, *args.overrides])
    else:
        data: dict[str, Any] = {
            "run": {"python_path": [str(Path.cwd())]},
            "engine": {"max_model_len": _context(args.checkpoint)},
        }
        for override in (*fixed, *args.overrides):
            apply_override(data, override)
        config = parse_config(data)
        search_in(config.run.python_path)
    check_evaluation(config)
    folder = Path(tempfile.mkdtemp(prefix="asyncrl-eval-"))
    try:
        groups = play_checkpoint(config, folder, args.checkpoint, env, args.tasks, args.samples)
        if args.rows:
            write_rows(args.rows, episode_rows(groups, args.samples))
        result = summarize(groups, args.samples)
    except AsyncRLError:
        # The message may refer to a log.
        print(f"logs of this evaluation: {folder / 'logs'}", file=sys.stderr)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
    print(describe(result))
    for k, value in result.pass_at.items():
        print(f"pass@{k} {value:.3f}")
    if args.out:
        args.out.write_text(json.dumps(result.to_json(), indent=2) + "\n")
    return 1 if args.fail_under is not None and result.mean < args.fail_under else 0


def _context(checkpoint: str) -> int:
    """Return the checkpoint's own context length, at most 4096."""
    path = Path(checkpoint) / "config.json"
    if not path.is_file():
        return 4096
    return min(4096, int(json.loads(path.read_text()).get("max_position_embeddings", 4096)))
