"""`asyncrl serve engine`."""

from __future__ import annotations

import argparse

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.gpus import ENGINE_SHARE, found_gpus
from asyncrl.services.command import CONFIGURED, NODES, Address, need

HELP = "a vLLM server whose weights are updated while it decodes"
OPTIONS = (
    *CONFIGURED,
    "--join",
    "--model",
    "--base-version",
    "--weights-dir",
    *NODES,
)


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    from asyncrl.run.model_folder import context_length
    from asyncrl.services.engine.additions import additions
    from asyncrl.services.engine.machines import MachineShare
    from asyncrl.services.engine.service import EngineOptions, serve_engine

    engine, model = config.engine, need(args.model, "--model", "engine")
    share = ENGINE_SHARE if engine.gpu_memory_utilization == "auto" else engine.gpu_memory_utilization
    configured = args.folder or args.recipe or args.join
    # The default is no one's choice: a model with a shorter context is served with its own.
    longest = engine.max_model_len if configured else context_length(model) or engine.max_model_len
    machine = MachineShare(args.nodes, args.node_rank, args.main_address, args.main_port)
    if machine.nodes > 1:
        if args.join:
            raise ConfigError(f"--join: an engine that joins is on one machine, got --nodes {machine.nodes}")
        need(machine.main_address, "--main-address", "engine over several machines")
        need(machine.main_port, "--main-port", "engine over several machines")
    options = EngineOptions(
        model=model,
        dtype=config.model.dtype,
        max_model_len=min(engine.max_model_len, longest),
        max_num_seqs=engine.max_num_seqs,
        gpu_memory_utilization=share,
        tensor_parallel=engine.tensor_parallel,
        pipeline_parallel=engine.pipeline_parallel,
        machine=machine,
        threads=config.run.threads,
        base_version=args.base_version,
        seed=config.run.seed,
        start_timeout_s=config.run.start_timeout_s,
        extra_args=tuple(engine.extra_args),
        weights_dir=str(args.weights_dir or ""),
        additions=additions(config, bool(args.weights_dir)),
        host=address.host,
        advertise=address.advertise,
    )
    if found_gpus():
        from asyncrl.numa import stay_near_gpus

        stay_near_gpus()
    return serve_engine(options, address.credentials, address.port, address.ready_file)
