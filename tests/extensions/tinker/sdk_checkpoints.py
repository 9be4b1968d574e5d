"""Publishes, copies, exports and downloads checkpoints by Tinker's SDK; prints what it was answered, as JSON.

python sdk_checkpoints.py FOLDER
"""

import json
import sys
import urllib.request
from pathlib import Path

import tinker
from tinker import types

folder = Path(sys.argv[1])
TOKENS = [5, 6, 7, 8, 9, 4, 3]
service = tinker.ServiceClient()
rest = service.create_rest_client()
training = service.create_lora_training_client(base_model="tiny", rank=4, seed=3).result()
row = types.Datum(
    model_input=types.ModelInput.from_ints(TOKENS[:-1]),
    loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
)


def train():
    training.forward_backward([row], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=0.05)).result()


def numbers(client):
    return client.forward([row], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].tolist()


def scored(path):
    sampler = service.create_sampling_client(model_path=path).result()
    return sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS)).result()[1:]


def public():
    return {one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints if one.public}


found = {}
train()
found["trained"] = numbers(training)
path = training.save_state("one").result().path
found["public"] = []
for call in (
    rest.publish_checkpoint_from_tinker_path, rest.publish_checkpoint_from_tinker_path,
    rest.unpublish_checkpoint_from_tinker_path, rest.unpublish_checkpoint_from_tinker_path,
):  # fmt: skip
    call(path).result()
    found["public"].append(path in public())

exported = training.save_weights_external("out", ttl_seconds=3600).result().path
answer = rest.get_external_weights_urls(exported).result()
found["exported"], found["urls"] = exported, answer.urls
for name, url in answer.urls.items():
    (folder / name).write_bytes(urllib.request.urlopen(url).read())
found["types"] = sorted(
    one.checkpoint_type for one in rest.list_checkpoints(training.model_id).result().checkpoints
)

copied = rest.copy_weights(path, "archive").result()
found["copied"] = copied
rest.delete_checkpoint_from_tinker_path(path).result()
found["loaded"] = numbers(service.create_training_client_from_state(copied).result())

# A name that was deleted and saved anew is another adapter.
sampled = training.save_weights_for_sampler("two").result().path
found["first"] = scored(sampled)
rest.delete_checkpoint_from_tinker_path(sampled).result()
train()
training.save_weights_for_sampler("two").result()
found["second"] = scored(sampled)
found["second_trained"] = numbers(training)

refused = []
for call in (
    lambda: training.save_weights_external("secret", age_encryption_recipients=["age1x"]).result(),
    lambda: training.save_weights_external("out").result(),
    lambda: service.create_training_client_from_state(exported).result(),
    lambda: rest.copy_weights(path, "archive").result(),
):
    try:
        call()
    except Exception as error:
        refused.append(f"{type(error).__name__}: {error}")
found["refused"] = refused
found["path"] = training.save_state("last").result().path
json.dump(found, sys.stdout)
