"""Trains on an environment of ours by the cookbook's own loop.

python sdk_env.py LOG_FOLDER MODEL ENV
"""

import asyncio
import sys

from tinker_cookbook.rl import train

from asyncrl.extensions.tinker.cookbook_env import AsyncrlDatasetBuilder

log, model, env = sys.argv[1:]
builder = AsyncrlDatasetBuilder(
    env=env,
    groups_per_batch=2,
    group_size=2,
    batches=2,
    heldout=2,
    model_name_for_tokenizer=model,
    renderer_name="role_colon",
)
config = train.Config(
    model_name=model,
    recipe_name="asyncrl",
    renderer_name="role_colon",
    log_path=log,
    dataset_builder=builder,
    learning_rate=1e-3,
    max_tokens=12,
    lora_rank=8,
    eval_every=1,
    save_every=0,
)
asyncio.run(train.main(config))
