"""`asyncrl replay RUN STEP/GROUP/INDEX`: play an episode again; `asyncrl replay FILE`: repeat a poisoned step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from asyncrl.console import shown
from asyncrl.signals import end_like_interrupted


def add(subparsers: Any) -> None:
    """Add the command. subparsers: argparse's, of `asyncrl`."""
    parser = subparsers.add_parser(
        "replay",
        help="play an episode of a run again, or repeat the step of groups that made a loss or gradient NaN",
        description="With a run's folder and a trajectory: play the recorded actions in the environment, without a "
        "model, and compare what comes back (exit code 1 if anything differs); with --sample have the policy that "
        "sampled it, or the nearest that was kept, play the same task. This starts the environment that the run's "
        "configuration names. With a file under runs/NAME/poison/: repeat its step on this machine with one rank, and "
        "report which group makes which number NaN or infinite (exit code 0 if none does, 1 otherwise).",
    )
    parser.add_argument(
        "what", type=Path, metavar="RUN|FILE", help="a run's folder, or a file of its poison folder"
    )
    parser.add_argument(
        "trajectory", nargs="?", metavar="STEP/GROUP/INDEX", help="as its page in asyncrl monitor gives it"
    )
    parser.add_argument("--sample", action="store_true", help="sample the actions anew")
    parser.add_argument("--checkpoint", default="", help="with --sample: the policy, a folder or hub name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from asyncrl.errors import ConfigError

    if args.trajectory is not None:
        return _play_again(args)
    if args.what.is_dir():
        raise ConfigError(
            f"replay {args.what}: is a folder; add STEP/GROUP/INDEX, as a trajectory's page gives it"
        )
    return _repeat_step(args.what)


def _play_again(args: argparse.Namespace) -> int:
    from asyncrl.errors import ConfigError
    from asyncrl.extensions.play_again.play_again import find_recorded, replay_actions, sample_again
    from asyncrl.run.runs import run_folder

    end_like_interrupted()
    if args.checkpoint and not args.sample:
        raise ConfigError("replay: --checkpoint goes with --sample; recorded actions need no policy")
    recorded = find_recorded(run_folder(args.what, "replay"), args.trajectory)
    task, row = recorded.task, recorded.row
    print(shown(f"task {task.id} of {task.env}, seed {task.seed}, episode {recorded.index}"))
    again = sample_again(recorded, args.checkpoint) if args.sample else replay_actions(recorded)
    now = next((t for t in again.trajectories if t.episode_index == recorded.index), again.trajectories[0])
    print(f"played again: {again.how}")
    print(f"{'':10s}{'recorded':>12s}{'now':>12s}")
    for name, old, new in (
        ("reward", f"{row['reward']:.3f}", f"{now.reward:.3f}"),
        ("success", row["success"], now.success),
        ("status", row["status"], now.status),
        ("turns", len(row["turn_start"]), len(now.turns)),
        ("tokens", len(row["token_ids"]), now.num_tokens),
    ):
        print(shown(f"{name:10s}{old!s:>12s}{new!s:>12s}"))
    if now.error:
        print(shown(str(now.error)))
    if again.difference is None:
        print("every message, token and reward is as recorded")
    else:
        print(shown(f"first difference: {again.difference.where}"))
        print(shown(f"  recorded: {again.difference.recorded}"))
        print(shown(f"  now:      {again.difference.now}"))
    print(f"kept in {again.file}; its page in asyncrl monitor shows both")
    return int(again.difference is not None and not args.sample)


def _repeat_step(file: Path) -> int:
    from asyncrl.extensions.play_again.poison_replay import replay

    found = replay(file)
    for index, group in enumerate(found.group_ids):
        now = found.report.left_out.get(index, "finite")
        print(f"group {group}: {now} (when recorded: {found.recorded.get(group, 'unknown')})")
    for name in ("loss/total", "grad_norm"):
        if name in found.report.metrics:
            print(f"{name} of the others: {found.report.metrics[name]:.6g}")
    return 1 if found.report.left_out else 0
