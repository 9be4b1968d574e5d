"""`asyncrl serve ROLE`: one process of a run, alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from asyncrl.disk import disk_problem
from asyncrl.errors import ConfigError, DeadlineError, StopError

JOINERS = ("engine", "env", "rollout")
STOPPED = 3
"""Exit code of a process that starting again would not help: it ended on purpose, or a disk takes nothing more."""
ROLES = ("buffer", "engine", "env", "gateway", "openenv", "rollout", "trainer")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="start one process: buffer, engine, env, gateway, openenv, rollout or trainer",
        description="Start one process. With --folder it reads the configuration of that run; alone it takes the "
        "options below. Listens on loopback; any other --host needs a token in ASYNCRL_TOKEN.",
    )
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--folder", type=Path, help="a run folder with config.json")
    parser.add_argument("--recipe", help="a recipe to take the configuration from, instead of a run folder")
    parser.add_argument("--model", help="model folder or hub name (engine, gateway, rollout, trainer)")
    parser.add_argument("--base-version", type=int, default=0, help="policy version of that model (engine)")
    parser.add_argument("--buffer", default="", help="address of the buffer (rollout, trainer)")
    parser.add_argument(
        "--engines",
        nargs="*",
        default=[],
        help="addresses of engines (gateway, rollout, trainer); @FILE waits for a JSON list of them (trainer)",
    )
    parser.add_argument(
        "--env", nargs="*", default=[], help="addresses of environment services (rollout); a name (openenv)"
    )
    parser.add_argument("--weights-dir", type=Path, help="where new weights travel (engine, trainer)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--name", default="", help="name of this worker in the ledger (rollout)")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="NAME=URL,...",
        help="a further policy of the recipe: addresses of its buffer and its engines (rollout)",
    )
    parser.add_argument(
        "--join",
        default="",
        metavar="URL",
        help="take part in a running job, whose buffer is at URL (engine, env, rollout); SIGTERM leaves it again",
    )
    parser.add_argument("--ready-file", help="file to write the address to once serving")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    token = os.environ.get("ASYNCRL_TOKEN", "")
    try:
        return _joined(args, token) if args.join else _serve(args, _config(args), token)
    except Exception as error:
        problem = disk_problem(error)
        if not problem:
            raise
        # The log may lie on the same disk.
        with contextlib.suppress(OSError):
            traceback.print_exc()
            print(f"asyncrl: {problem}; starting again does not help until there is room", file=sys.stderr)
        return STOPPED


def _joined(args: argparse.Namespace, token: str) -> int:
    """Fill in what the job says and serve until told to stop."""
    from asyncrl.launch.join import Membership, fetch_job

    if args.role not in JOINERS:
        raise ConfigError(f"--join: {args.role} cannot join a job; allowed: {', '.join(JOINERS)}")
    job = fetch_job(args.join, token)
    args.model, args.buffer = args.model or job.model, args.join
    args.engines, args.env = job.engines, job.envs
    args.policy = args.policy or job.policies
    args.weights_dir = args.weights_dir or Path(job.weights_dir)
    if args.role == "rollout":
        return _serve(args, job.config, token)
    with tempfile.TemporaryDirectory(prefix="asyncrl-join-") as folder:
        args.ready_file = args.ready_file or str(Path(folder) / "ready.json")
        buffers = {"": args.join} | (job.guests if args.role == "engine" else {})
        members = [
            Membership(buffer, token, args.role, Path(args.ready_file), policy)
            for policy, buffer in buffers.items()
        ]
        for member in members:
            member.start()
        try:
            return _serve(args, job.config, token)
        finally:
            for member in members:
                member.leave()


def _serve(args: argparse.Namespace, config: Any, token: str) -> int:
    address: dict[str, Any] = {
        "host": args.host, "port": args.port, "token": token, "ready_file": args.ready_file
    }  # fmt: skip
    return globals()[f"_{args.role}"](args, config, address)


def _config(args: argparse.Namespace) -> Any:
    from asyncrl.config import Config, load_config

    if args.folder is not None:
        path = args.folder / "config.json"
        if not path.is_file():
            raise ConfigError(f"--folder {args.folder}: has no config.json")
        return load_config(path)
    if args.recipe:
        return load_config(args.recipe)
    return Config.model_validate({"model": {"path": args.model or "none"}, "env": {"name": "gridworld"}})


def _need(value: Any, option: str, role: str) -> Any:
    if not value:
        raise ConfigError(f"serve {role}: needs {option}")
    return value


def _buffer(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.buffer import serve_buffer

    ledger = args.folder / "ledger.sqlite" if args.folder else Path("ledger.sqlite")
    serve_buffer(
        str(ledger),
        groups_per_step=config.buffer.groups_per_step,
        max_staleness=config.buffer.max_staleness,
        group_size=config.rollout.group_size,
        lease_s=config.rollout.lease_s,
        max_attempts=config.rollout.max_attempts,
        drop_no_signal=config.buffer.drop_no_signal,
        max_tokens=config.max_tokens,
        over_provision=config.buffer.over_provision,
        recycle=config.buffer.recycle,
        token_budget=config.buffer.token_budget,
        base_version=args.base_version,
        **address,
    )
    return 0


def _env(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.env import serve_env

    env = config.env
    serve_env(
        max_sessions=env.max_sessions,
        lease_s=env.lease_s,
        processes=env.processes,
        limits=env.limits,
        **address,
    )
    return 0


def _openenv(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.openenv import serve_openenv

    configured = bool(args.recipe or args.folder)
    names = args.env or ([config.env.name] if configured else [])
    if len(names) != 1:
        raise ConfigError("serve openenv: needs --env NAME, or --recipe")
    settings = config.env.config if configured and names[0] == config.env.name else {}
    serve_openenv(names[0], settings, max_sessions=config.env.max_sessions, **address)
    return 0


def _engine(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.engine import EngineOptions, serve_engine

    if args.host != "127.0.0.1":
        raise ConfigError("serve engine: listens on 127.0.0.1 only; its update routes must not be reachable")
    engine = config.engine
    options = EngineOptions(
        model=_need(args.model, "--model", "engine"),
        dtype=config.model.dtype,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        kv_cache_gib=engine.kv_cache_gib,
        gpu_memory_utilization=engine.gpu_memory_utilization,
        tensor_parallel=engine.tensor_parallel,
        weight_transfer=engine.weight_transfer,
        threads=engine.threads,
        base_version=args.base_version,
        seed=config.run.seed,
        start_timeout_s=engine.start_timeout_s,
        extra_args=tuple(engine.extra_args),
        weights_dir=str(args.weights_dir or ""),
        # Without a run to send adapters the model is served as it is, as for an evaluation.
        lora=config.lora if config.lora.rank and args.weights_dir else None,
        policies=config.guests if args.weights_dir else {},
    )
    return serve_engine(options, args.port, args.ready_file)


def _rollout(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.launch.join import read_policy
    from asyncrl.services.rollout import PlayerAddresses, serve_rollout

    players = {}
    for policy in args.policy:
        name, buffer, engines = read_policy(policy)
        players[name] = PlayerAddresses(engines, buffer)
    serve_rollout(
        config,
        _need(args.model, "--model", "rollout"),
        _need(args.engines, "--engines", "rollout"),
        _need(args.env, "--env", "rollout"),
        buffer=args.buffer,
        name=args.name,
        players=players,
        **address,
    )
    return 0


def _gateway(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.gateway import serve_gateway

    model = _need(args.model, "--model", "gateway")
    serve_gateway(config, model, _need(args.engines, "--engines", "gateway"), **address)
    return 0


def _trainer(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    if config.train.ranks > 1 and "RANK" not in os.environ:
        return _run_ranks(config.train.ranks)
    from asyncrl.parent import die_with_parent
    from asyncrl.services.trainer import run_trainer

    die_with_parent()
    try:
        return run_trainer(
            _need(args.folder, "--folder", "trainer"),
            _need(args.model, "--model", "trainer"),
            _need(args.buffer, "--buffer", "trainer"),
            _need(args.engines, "--engines", "trainer"),
            _need(args.weights_dir, "--weights-dir", "trainer"),
            address["token"],
        )
    except (DeadlineError, StopError) as error:
        print(f"asyncrl: {error}", file=sys.stderr)
        return STOPPED


def _run_ranks(count: int) -> int:
    """Run this command once a rank under torchrun; return the first exit code that says the run is to end."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    try:
        torchrun(["--standalone", "--nproc-per-node", str(count), "-m", "asyncrl", *sys.argv[1:]])
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return next((code for code in codes if code in (2, STOPPED)), 1)
    return 0
