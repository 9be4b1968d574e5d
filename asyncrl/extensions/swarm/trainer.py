"""The first rank's part in a swarm: who it is there, and what it takes from others."""

from __future__ import annotations

import json
import logging
import uuid
from pathlib import Path

import xxhash

from asyncrl.config import Config
from asyncrl.credentials import Credentials, read_credentials
from asyncrl.data.token_extras.table import KINDS
from asyncrl.errors import AsyncRLError, ConfigError, InputError
from asyncrl.extensions.swarm.client import SwarmClient
from asyncrl.extensions.swarm.curation import Terms
from asyncrl.extensions.swarm.pool import RECORD, Quota, Swarm, SwarmPool
from asyncrl.extensions.swarm.settings import SwarmConfig
from asyncrl.jsonfile import read_json, write_json
from asyncrl.train.loop.callback_context import CallbackContext

log = logging.getLogger("asyncrl.train")

RUN_FILE = "swarm.json"
"""File of a run's folder with the id by which a swarm knows the run."""


def shared_rollouts(context: CallbackContext) -> Swarm | None:
    """Return the callback of a run that shares groups with others, on the first rank."""
    given = context.arguments
    if not context.first:
        return None
    pool = open_swarm(context.config, given.folder, given.model, given.credentials)
    return Swarm(pool) if pool is not None else None


def open_swarm(config: Config, folder: Path, model: str, credentials: Credentials) -> SwarmPool | None:
    """Return what other runs share with this one; None where it trains on its own rollouts alone.

    Raises `ConfigError` for a token file that cannot be read, and for a token that the service does not know.
    """
    given = config.section(SwarmConfig)
    if not given.url:
        return None
    known = read_json(folder / RUN_FILE)
    if known is None:
        known = {"run": uuid.uuid4().hex}
        write_json(folder / RUN_FILE, known)
    num_token_ids, family = tokenizer_family(model)
    client = SwarmClient(given.url, _bearer(given.token_file, credentials), known["run"], folder.name, family)
    check_token(client, given.url)
    inputs = {name for name, kind in KINDS.items() if kind.read_by_models}
    terms = Terms(config.env.name, num_token_ids, config.engine.max_model_len, given.max_reward, inputs)
    quota = Quota(given.groups, given.share, given.max_age, config.run.seed)
    return SwarmPool(quota, terms, client, folder / RECORD)


def check_token(client: SwarmClient, url: str) -> None:
    """Refuse a token that waiting would not make right. Who does not answer may do so later."""
    try:
        client.check()
    except (ConfigError, InputError) as error:
        client.close()
        raise ConfigError(
            f"swarm.token_file: the swarm at {url} does not take the token; give a copy of the `swarm-token` "
            f"in the --state folder of `asyncrl serve swarm` ({error})"
        ) from error
    except (AsyncRLError, TimeoutError) as error:
        log.warning("the swarm at %s does not answer yet: %s", url, error)


def tokenizer_family(model: str) -> tuple[int, str]:
    """Return the number of a model's token ids, and a hash that is equal where equal ids mean equal text and messages
    are written alike."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    meaning = [sorted(tokenizer.get_vocab().items()), str(tokenizer.chat_template)]
    return len(tokenizer), xxhash.xxh3_128_hexdigest(json.dumps(meaning).encode())


def _bearer(token_file: str, credentials: Credentials) -> str:
    if not token_file:
        return credentials.bearer("swarm")
    try:
        return read_credentials(Path(token_file).read_text(), token_file).bearer("swarm")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"swarm.token_file: cannot be read: {error}") from error
