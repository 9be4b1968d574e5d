"""`asyncrl serve ROLE`: one process of a run, alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

from asyncrl.disk import disk_problem
from asyncrl.errors import ConfigError, DeadlineError, StopError
from asyncrl.parent import texts, withhold_secrets
from asyncrl.tokens import (
    RUN_FILE,
    VARIABLE,
    Credentials,
    own_credentials,
    read_credentials,
    run_credentials,
    user_folder,
)

SIMULATOR_KEY = "ASYNCRL_SIMULATOR_KEY"
"""The one secret that an environment of ours asks for by name."""
STOPPED = 3
"""Exit code of a process that starting again would not help: it ended on purpose, or a disk takes nothing more."""

_ADDRESS = ("--host", "--port", "--ready-file", "--token-file")
_CONFIGURED = ("--folder", "--recipe", *_ADDRESS)
ROLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "buffer": ("the ledger of tasks, groups and steps", (*_CONFIGURED, "--base-version", "--model")),
    "engine": (
        "a vLLM server whose weights are updated while it decodes",
        (*_CONFIGURED, "--join", "--model", "--base-version", "--weights-dir"),
    ),
    "env": ("sessions of environments", (*_CONFIGURED, "--join")),
    "gateway": (
        "an OpenAI- and Anthropic-compatible API that records exact tokens",
        (*_CONFIGURED, "--model", "--engines"),
    ),
    "openenv": ("an environment for OpenEnv clients", (*_CONFIGURED, "--env")),
    "rollout": (
        "a worker that plays groups of episodes; without --buffer it runs tasks on request",
        (*_CONFIGURED, "--join", "--model", "--engines", "--env", "--buffer", "--name", "--policy"),
    ),
    "trainer": (
        "the trainer of a run",
        ("--folder", "--model", "--engines", "--buffer", "--weights-dir", "--token-file"),
    ),
}
"""What each role is, and the options it takes."""
OPTIONS: dict[str, dict[str, Any]] = {
    "--folder": {"type": Path, "help": "a run folder, whose config.json is the configuration"},
    "--recipe": {"help": "a recipe to take the configuration from, instead of a run folder"},
    "--join": {
        "default": "",
        "metavar": "URL",
        "help": "take part in a running job, whose buffer is at URL, and take everything else from it; SIGTERM leaves",
    },
    "--model": {"help": "model folder or hub name"},
    "--base-version": {
        "type": int,
        "default": 0,
        "help": "policy version of the model the run starts from (0)",
    },
    "--weights-dir": {"type": Path, "help": "folder through which new weights travel"},
    "--buffer": {"default": "", "metavar": "URL", "help": "address of the buffer"},
    "--engines": {"nargs": "*", "default": [], "metavar": "URL", "help": "addresses of engines"},
    "--env": {"nargs": "*", "default": [], "metavar": "URL", "help": "addresses of environment services"},
    "--name": {"default": "", "help": "name of this worker in the ledger"},
    "--policy": {
        "action": "append",
        "default": [],
        "metavar": "NAME=URL,...",
        "help": "a further policy of the recipe: addresses of its buffer and its engines; may be repeated",
    },
    "--host": {
        "default": "127.0.0.1",
        "help": "address to listen on (127.0.0.1)",
    },
    "--port": {"type": int, "default": 0, "help": "port to listen on; 0, the default, takes a free one"},
    "--token-file": {
        "type": Path,
        "metavar": "FILE",
        "help": "file with the token, such as runs/NAME/token, or to join a job runs/NAME/join-token",
    },
    "--ready-file": {"help": "file to write the address to once serving"},
}
OTHERWISE: dict[tuple[str, str], dict[str, Any]] = {
    ("openenv", "--env"): {
        "metavar": "NAME",
        "help": "name or import path of the environment, instead of a recipe's",
    },
    ("trainer", "--engines"): {"help": "addresses of engines; @FILE waits for a JSON list of them"},
    ("engine", "--host"): {"help": "127.0.0.1 only: its update routes must not be reachable from elsewhere"},
}
"""Where an option means something else to a role."""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="start one process: buffer, engine, env, gateway, openenv, rollout or trainer",
        description="Start one process. With --folder it reads the configuration of that run, with --recipe that of a "
        "recipe; alone it takes the defaults. Callers must know its token: ASYNCRL_TOKEN, --token-file, that of the "
        "run in --folder, or else one of your own, which is made and named at the start. "
        "`asyncrl serve ROLE --help` shows the options of a role.",
    )
    roles = parser.add_subparsers(title="roles", metavar="ROLE", dest="role", required=True)
    for role, (what, options) in ROLES.items():
        one = roles.add_parser(role, help=what, description=f"Start {what}.")
        absent = {
            name.strip("-").replace("-", "_"): option.get("default") for name, option in OPTIONS.items()
        }
        one.set_defaults(run=run, **absent)
        for name in options:
            one.add_argument(name, **OPTIONS[name] | OTHERWISE.get((role, name), {}))


def run(args: argparse.Namespace) -> int:
    credentials = _credentials(args)
    if args.role in ("env", "gateway", "openenv", "rollout"):
        # What environments and agents run in this process is not to find it.
        os.environ.pop(VARIABLE, None)
    try:
        return _joined(args, credentials) if args.join else _serve(args, _config(args), credentials)
    except Exception as error:
        problem = disk_problem(error)
        if not problem:
            raise
        # The log may lie on the same disk.
        with contextlib.suppress(OSError):
            traceback.print_exc()
            print(f"asyncrl: {problem}; starting again does not help until there is room", file=sys.stderr)
        return STOPPED


def _credentials(args: argparse.Namespace) -> Credentials:
    """Return the credentials given, those of the run, or the user's own."""
    if args.token_file is not None:
        try:
            return read_credentials(args.token_file.read_text(), f"--token-file {args.token_file}")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--token-file {args.token_file}: cannot be read: {error}") from error
    if os.environ.get(VARIABLE):
        return own_credentials()
    if args.join:
        raise ConfigError(
            "--join: give the run's join token: --token-file runs/NAME/join-token, or ASYNCRL_TOKEN"
        )
    if args.folder is not None:
        return run_credentials(args.folder) if args.folder.is_dir() else _no_run(args.folder)
    folder = user_folder()
    credentials = run_credentials(folder)
    path = folder / RUN_FILE
    print(
        f"asyncrl: callers need the token in {path}: `export {VARIABLE}=$(cat {path})`, or with curl "
        f'-H "Authorization: Bearer $(cat {path})"',
        file=sys.stderr,
    )
    return credentials


def _no_run(folder: Path) -> NoReturn:
    raise ConfigError(f"--folder {folder}: has no config.json")


def _joined(args: argparse.Namespace, credentials: Credentials) -> int:
    """Fill in what the job says and serve until told to stop."""
    from asyncrl.launch.join import Membership, fetch_job

    job, credentials = fetch_job(args.join, credentials.bearer("buffer"), args.role, args.name)
    args.model, args.buffer = args.model or job.model, args.join
    args.engines, args.env = job.engines, job.envs
    args.policy = args.policy or job.policies
    args.weights_dir = args.weights_dir or Path(job.weights_dir)
    if args.role == "rollout":
        return _serve(args, job.config, credentials)
    with tempfile.TemporaryDirectory(prefix="asyncrl-join-") as folder:
        args.ready_file = args.ready_file or str(Path(folder) / "ready.json")
        buffers = {"": args.join} | (job.guests if args.role == "engine" else {})
        members = [
            Membership(buffer, credentials.bearer("buffer"), args.role, Path(args.ready_file), policy)
            for policy, buffer in buffers.items()
        ]
        for member in members:
            member.start()
        try:
            return _serve(args, job.config, credentials)
        finally:
            for member in members:
                member.leave()


def _serve(args: argparse.Namespace, config: Any, credentials: Credentials) -> int:
    address: dict[str, Any] = {
        "host": args.host, "port": args.port, "credentials": credentials, "ready_file": args.ready_file
    }  # fmt: skip
    return globals()[f"_{args.role}"](args, config, address)


def _config(args: argparse.Namespace) -> Any:
    from asyncrl.config import Config, load_config

    if args.folder is not None:
        path = args.folder / "config.json"
        if not path.is_file():
            _no_run(args.folder)
        return load_config(path)
    if args.recipe:
        return load_config(args.recipe)
    return Config.model_validate({"model": {"path": args.model or "none"}, "env": {"name": "gridworld"}})


def _need(value: Any, option: str, role: str) -> Any:
    if not value:
        raise ConfigError(f"serve {role}: needs {option}")
    return value


def _buffer(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.launch.model_folder import vocab_size
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
        vocab_size=vocab_size(args.model) if args.model else 0,
        base_version=args.base_version,
        **address,
    )
    return 0


def _env(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.env import serve_env

    env = config.env
    _withhold_secrets(env)
    serve_env(
        max_sessions=env.max_sessions,
        lease_s=env.lease_s,
        processes=env.processes,
        limits=env.limits,
        envs={env.name: env.config} if args.recipe or args.folder or args.join else None,
        **address,
    )
    return 0


def _withhold_secrets(env: Any) -> None:
    """Leave environments, and what they start, only the secrets that the recipe names."""
    withhold_secrets({SIMULATOR_KEY, *env.secrets, *texts(env.config)})


def _openenv(args: argparse.Namespace, config: Any, address: dict[str, Any]) -> int:
    from asyncrl.services.openenv import serve_openenv

    _withhold_secrets(config.env)
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
    return serve_engine(options, address["credentials"], args.port, args.ready_file)


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
            address["credentials"],
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
