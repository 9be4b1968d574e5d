"""`asyncrl serve tinker`."""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncrl.config import Config
from asyncrl.errors import ConfigError
from asyncrl.gpus import ENGINE_SHARE, found_gpus
from asyncrl.services.command import Address, need

ENGINE_SHARE_BESIDE = 0.45
"""Of a GPU's memory for the engine, since the trained model is beside it."""
TOKENS_AT_ONCE = 4096
"""Of padded rows, in one pass on a CPU; on a GPU four times as many."""
STATE = "tinker"
MOST_RANKS = 64


def start(args: argparse.Namespace, config: Config, address: Address) -> int:
    """See `RoleCommand`."""
    model = need(args.model, "--model", "tinker")
    rank, at_once = whole("--lora-rank", args.lora_rank, 512), whole("--adapters", args.adapters, 64)
    keep_h = whole("--keep-policies-h", args.keep_policies_h, 24 * 366)
    ranks = number_of_ranks(args.ranks, config.train.ranks)
    from asyncrl.extensions.tinker.clients import ClientAccess, read_keys

    clients = read_keys(Path(args.keys)) if args.keys else {}
    folder = Path(args.state or STATE).resolve()
    from asyncrl.run.model_folder import context_length

    engine = config.engine
    longest = context_length(model) or engine.max_model_len
    context = min(engine.max_model_len, longest) if args.recipe else longest
    share = engine.gpu_memory_utilization
    options = {
        "model": model,
        "dtype": config.model.dtype,
        "max_model_len": context,
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": min(ENGINE_SHARE, ENGINE_SHARE_BESIDE) if share == "auto" else share,
        "threads": config.run.threads,
        "seed": config.run.seed,
        "start_timeout_s": config.run.start_timeout_s,
        "extra_args": list(engine.extra_args),
        "adapters": str(folder / "adapters"),
        "lora_rank": rank,
        "at_once": at_once,
    }

    from asyncrl.extensions.tinker.checkpoints import Checkpoints
    from asyncrl.extensions.tinker.engine import EngineKeeper
    from asyncrl.extensions.tinker.ledger import Ledger
    from asyncrl.extensions.tinker.links import links_of
    from asyncrl.extensions.tinker.policies import AdapterSettings
    from asyncrl.extensions.tinker.progress import Progress, ranks_before
    from asyncrl.extensions.tinker.rank_keeper import loaded_model, threads_each
    from asyncrl.extensions.tinker.rank_process import RankOptions
    from asyncrl.extensions.tinker.sampling import Sampling
    from asyncrl.extensions.tinker.server import Server
    from asyncrl.extensions.tinker.service import create_tinker_app
    from asyncrl.extensions.tinker.training import Training
    from asyncrl.extensions.tinker.waiting import Answers
    from asyncrl.services.http.serving import serve

    ledger = Ledger(folder)
    if (before := ranks_before(folder)) not in (None, ranks):
        print(
            f"tinker: {folder} was served with --ranks {before} last, now with {ranks}: results agree to rounding",
            flush=True,
        )
    tokens, threads = TOKENS_AT_ONCE * (4 if found_gpus() else 1), threads_each(config.run.threads, ranks)
    each = RankOptions(
        model, config.model.dtype, context, tokens, ranks, config.train.stall_timeout_s, threads, at_once
    )
    with loaded_model(each, config.run.start_timeout_s) as (base, others):
        options["modules"] = base.layers(AdapterSettings(rank=1, seed=0))
        answers = Answers()
        training = Training(
            base, Checkpoints(folder, ledger), answers, args.model_name or model, rank, at_once
        )
        sampling = Sampling(ledger, answers, context)
        keeper = EngineKeeper(options, address.credentials, folder, sampling, base.vocab_size)
        tokenizer = str(Path(model).resolve()) if Path(model).is_dir() else ""
        server = Server(training, sampling, answers, tokenizer, keep_h * 3600.0)
        access, links = ClientAccess(address.credentials, clients), links_of(address.credentials)
        progress = Progress(server, folder, model, ranks)
        app = create_tinker_app(server, access, links, progress, keeper, others)

        def serving(url: str) -> None:
            print(
                f"tinker: serving {server.name} at {url}, state in {folder}\n"
                f"    TINKER_BASE_URL={url} TINKER_API_KEY=tml-TOKEN, with the token that this server was given",
                flush=True,
            )

        serve(app, address.host, address.port, address.ready_file, serving, address.advertise)
    return 0


def number_of_ranks(given: str, of_recipe: int) -> int:
    """Return how many ranks train: `--ranks`, else `train.ranks`. Raises `ConfigError`, also for more ranks than there
    are GPUs, if there are any."""
    option, ranks = ("--ranks", whole("--ranks", given, MOST_RANKS)) if given else ("train.ranks", of_recipe)
    gpus = len(found_gpus())
    if gpus and ranks > gpus:
        raise ConfigError(
            f"{option}: must be at most the number of GPUs that this process may use, {gpus}, got {ranks}"
        )
    return ranks


def whole(option: str, given: str, most: int) -> int:
    """Return a whole number from 1 to `most`. Raises `ConfigError`."""
    if not given.isdecimal() or not 1 <= int(given) <= most:
        raise ConfigError(f"{option}: must be a whole number from 1 to {most}, got {given!r}")
    return int(given)
