"""`asyncrl serve trainer`."""

from __future__ import annotations

import argparse
import os
import sys

from asyncrl.config import Config
from asyncrl.disk import BY_CODE
from asyncrl.endpoint import interface_to
from asyncrl.errors import DeadlineError, StopError
from asyncrl.services.command import MISCONFIGURED, NODES, STOPPED, Address, need

HELP = "the trainer of a run"
OPTIONS = (
    "--folder",
    "--model",
    "--engines",
    "--buffer",
    "--weights-dir",
    "--beside",
    "--main-buffer",
    "--token-file",
    *NODES,
)
RANK_OF = "ASYNCRL_RANK_OF"
"""Names the folder of the run of which torchrun has made this process a rank."""
OF_TORCHRUN = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)
"""Environment variables by which torchrun tells its processes their ranks."""


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    if os.environ.get(RANK_OF) != str(args.folder):
        # Whoever starts a run may be one of torchrun's ranks itself, or have been: what describes that is not for us.
        for name in [name for name in os.environ if name in OF_TORCHRUN or name.startswith("TORCHELASTIC_")]:
            del os.environ[name]
        if config.train.ranks > 1:
            os.environ[RANK_OF] = str(args.folder)
            return _run_ranks(config.train.ranks_each, args)
    from asyncrl.gpus import find_own_programs, found_gpus, grow_segments
    from asyncrl.process_hooks import collecting_no_garbage, die_with_parent

    die_with_parent()
    grow_segments()
    find_own_programs()
    if found_gpus():
        from asyncrl.numa import stay_near_gpus

        stay_near_gpus()
    with collecting_no_garbage():
        from asyncrl.services.trainer.service import run_trainer
        from asyncrl.train.arguments import TrainerArguments
    given = TrainerArguments(
        folder=need(args.folder, "--folder", "trainer"),
        model=need(args.model, "--model", "trainer"),
        buffer=need(args.buffer, "--buffer", "trainer"),
        engines=args.engines if args.node_rank else need(args.engines, "--engines", "trainer"),
        weights_dir=need(args.weights_dir, "--weights-dir", "trainer"),
        credentials=address.credentials,
        beside=dict(one.partition("=")[::2] for one in args.beside),
        main_buffer=args.main_buffer,
        machines=args.nodes,
    )
    try:
        return run_trainer(given)
    except (DeadlineError, StopError) as error:
        print(f"asyncrl: {error}", file=sys.stderr)
        return STOPPED


def _run_ranks(ranks_each: int, args: argparse.Namespace) -> int:
    """Run this command once a rank of this machine under torchrun; return the first exit code that says the run is to
    end. Over several machines the first one has rank 0: torchrun's dynamic rendezvous would not say which."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from asyncrl.process_start import children_without_folder

    where = ["--standalone"]
    if args.nodes > 1:
        where = ["--nnodes", str(args.nodes), "--node-rank", str(args.node_rank)]
        where += ["--master-addr", args.main_address, "--master-port", str(args.main_port)]
        interface = interface_to(args.main_address)
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            # Else gloo takes the one that the machine's name resolves to, often loopback.
            os.environ.setdefault(variable, interface)
    try:
        with children_without_folder():
            torchrun([*where, "--nproc-per-node", str(ranks_each), "-m", "asyncrl", *sys.argv[1:]])
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return next((code for code in codes if code in (MISCONFIGURED, STOPPED, *BY_CODE)), 1)
    return 0
