"""`asyncrl serve ROLE`: one process of a run, alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from asyncrl.config import Config, load_config, parse_config
from asyncrl.console import advice_for
from asyncrl.credentials import (
    RUN_FILE,
    VARIABLE,
    Credentials,
    own_credentials,
    read_credentials,
    run_credentials,
    user_folder,
)
from asyncrl.disk import DISK, disk_problem, exhausted
from asyncrl.errors import ConfigError
from asyncrl.extensions.table import rows
from asyncrl.scratch import scratch_folder
from asyncrl.services.buffer import command as buffer
from asyncrl.services.command import Address, ExtensionRole, RoleCommand
from asyncrl.services.engine import command as engine
from asyncrl.services.engine import policy_command as policy
from asyncrl.services.env import command as env
from asyncrl.services.rollout import command as rollout
from asyncrl.services.trainer import command as trainer
from asyncrl.types import MAIN_POLICY

if TYPE_CHECKING:
    from asyncrl.commands import Subparsers

ROLES: dict[str, RoleCommand] = {
    "buffer": buffer,
    "engine": engine,
    "env": env,
    "policy": policy,
    "rollout": rollout,
    "trainer": trainer,
}
"""Those of the core; `roles` returns all."""
LOAD_MODELS = frozenset({"engine", "policy", "rollout"})
"""Roles of the core that import transformers, or start what does, and are started by hand, too: a run's launcher has
looked at the installation for the others."""
BESIDE_OTHERS = frozenset({"env", "rollout"})
"""Roles of the core in whose processes code of environments and agents runs."""
OPTIONS: dict[str, dict[str, Any]] = {
    "CHECKPOINT": {
        "metavar": "CHECKPOINT",
        "help": "a model folder, such as a checkpoint of a run, or a hub name",
    },
    "--folder": {"type": Path, "help": "a run folder, whose config.json is the configuration"},
    "--recipe": {"help": "a recipe to take the configuration from, instead of a run folder"},
    "--join": {
        "default": "",
        "metavar": "URL",
        "help": "join a running job, whose buffer is at URL, and take all settings from it; SIGTERM leaves it",
    },
    "--model": {"help": "model folder or hub name"},
    "--base-version": {
        "type": int,
        "default": 0,
        "help": "policy version of the model the run starts from (0)",
    },
    "--weights-dir": {"type": Path, "help": "folder of the published weights"},
    "--buffer": {"default": "", "metavar": "URL", "help": "address of the buffer"},
    **{
        f"--{row.name}": {
            "default": "",
            "metavar": "URL",
            "help": f"address of the {row.name} service that has every change before it is acknowledged, instead of "
            f"buffer.{row.name}",
        }
        for row in rows("ledger_followers")
    },
    "--engines": {"nargs": "*", "default": [], "metavar": "URL", "help": "addresses of engines"},
    "--env": {"nargs": "*", "default": [], "metavar": "URL", "help": "addresses of environment services"},
    "--main-buffer": {
        "default": "",
        "metavar": "URL",
        "help": "of a policy without agents: address of the buffer of the main policy, whose agents it plays",
    },
    "--beside": {
        "action": "append",
        "default": [],
        "metavar": "ROLE=@FILE",
        "help": "file that will hold the address of a process that the trainer has for itself; may be repeated",
    },
    "--name": {"default": "", "help": "name of this worker in the ledger"},
    "--nodes": {"type": int, "default": 1, "help": "machines over which the ranks are spread"},
    "--node-rank": {"type": int, "default": 0, "help": "number of this machine among them; 0 has rank 0"},
    "--main-address": {
        "default": "",
        "metavar": "HOST",
        "help": "address of machine 0, at which the ranks meet",
    },
    "--main-port": {"type": int, "default": 0, "metavar": "PORT", "help": "port at which they meet"},
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
    "--advertise": {
        "default": "",
        "metavar": "HOST",
        "help": "name or address under which others reach it, if not --host; with --host 0.0.0.0 this machine's own "
        "address by default",
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
    ("rollout", "--beside"): {
        "metavar": "ROLE=URL",
        "help": "address of a process that the workers have for themselves; may be repeated",
    },
    ("trainer", "--engines"): {"help": "addresses of engines; @FILE waits for a JSON list of them"},
}
"""Options that mean something else for a role of the core."""


def roles() -> dict[str, RoleCommand]:
    """Return the commands of all roles, by their names in order."""
    found = {**ROLES, **{row.name: ExtensionRole(row) for row in rows("service_roles")}}
    return dict(sorted(found.items()))


def add(subparsers: Subparsers) -> None:
    commands = roles()
    *names, last = commands
    parser = subparsers.add_parser(
        "serve",
        help=f"start one process: {', '.join(names)} or {last}",
        description="Start one process. With --folder it reads the configuration of that run, with --recipe that of a "
        "recipe; alone it takes the defaults. Callers must know its token: ASYNCRL_TOKEN, --token-file, that of the "
        "run in --folder, or else your user's own, whose file is named at the start. "
        "`asyncrl serve ROLE --help` shows the options of a role.",
    )
    choices = parser.add_subparsers(title="roles", metavar="ROLE", dest="role", required=True)
    for role, command in commands.items():
        one = choices.add_parser(role, help=command.HELP, description=f"Start {command.HELP}.")
        absent = {
            name.strip("-").replace("-", "_").lower(): option.get("default")
            for name, option in OPTIONS.items()
        }
        row = command.row if isinstance(command, ExtensionRole) else None
        loads_models = row.loads_models if row else role in LOAD_MODELS
        one.set_defaults(
            run=run,
            loads_models=loads_models,
            of_a_run=bool(row and row.of_a_run),
            of_others=row.of_others if row else role in BESIDE_OTHERS,
            member=not row.join if row else role != "rollout",
            **absent,
        )
        for name in command.OPTIONS:
            own = row.options.get(name, {}) if row else OTHERWISE.get((role, name), {})
            options = {**OPTIONS.get(name, {"default": ""}), **own}
            one.add_argument(name if name.startswith("-") else name.lower(), **options)


def run(args: argparse.Namespace) -> int:
    credentials = _credentials(args)
    if args.of_others:
        # Code of environments and agents in this process must not find it.
        os.environ.pop(VARIABLE, None)
    try:
        return _joined(args, credentials) if args.join else _serve(args, _config(args), credentials)
    except Exception as error:
        out = exhausted(error)
        if out is None or (out is not DISK and isinstance(error, ConfigError)):
            raise
        if out is DISK:
            advice = f"{disk_problem(error)}; a restart does not help until there is room"
        else:
            advice = advice_for(error) or out.cause
        # The log may be on the same disk, and there may be no memory for it.
        with contextlib.suppress(OSError, MemoryError):
            traceback.print_exc()
            print(f"asyncrl: {advice}", file=sys.stderr, flush=True)
        return out.code


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
    if args.of_a_run:
        raise ConfigError(
            f"serve {args.role}: give the run's token: ASYNCRL_TOKEN, or --token-file and a copy of runs/NAME/token"
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
    """Take the missing options from the job and serve until told to stop."""
    from asyncrl.env.config_check import env_services
    from asyncrl.services.joining import Membership, fetch_job

    job, credentials = fetch_job(args.join, credentials.bearer("buffer"), args.role, args.name)
    args.model, args.buffer = args.model or job.model, args.join
    args.engines, args.env = job.engines, job.envs
    if args.role == "env" and not env_services(job.config):
        raise ConfigError(
            "serve env --join: this run's sessions are in its rollout workers; start it with env.services=1, so that "
            "services can join"
        )
    args.policy = args.policy or job.policies
    args.beside = args.beside or [f"{role}={url}" for role, url in job.beside.items()]
    args.weights_dir = args.weights_dir or Path(job.weights_dir)
    if not args.member:
        return _serve(args, job.config, credentials)
    with scratch_folder("join") as folder:
        args.ready_file = args.ready_file or str(folder / "ready.json")
        buffers = {MAIN_POLICY: args.join} | (job.co_served_policies if args.role == "engine" else {})
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


def _serve(args: argparse.Namespace, config: Config, credentials: Credentials) -> int:
    from asyncrl.launch.models.local_models import local_model

    if args.model:
        args.model = local_model("--model", args.model)
    if args.role == "policy":
        from asyncrl.launch.checks.check import check_model
        from asyncrl.run.checkpoints import newest_of_run

        args.checkpoint = local_model("serve policy", newest_of_run(args.checkpoint))
        check_model("serve policy", args.checkpoint, config, policy=False)
    address = Address(args.host, args.port, credentials, args.ready_file, args.advertise)
    return roles()[args.role].start(args, config, address)


def _config(args: argparse.Namespace) -> Config:
    if args.folder is not None:
        if not (args.folder / "config.json").is_file():
            _no_run(args.folder)
        return load_config(args.folder / "config.json")
    if args.recipe:
        from asyncrl.launch.models.local_models import load_recipe

        return load_recipe(args.recipe)
    model = args.model or args.checkpoint or "none"
    return parse_config({"model": {"path": model}, "env": {"name": "gridworld"}})
