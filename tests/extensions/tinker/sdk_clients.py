"""Two clients with keys and quotas of their own, by Tinker's SDK; prints what each was told, as JSON.

python sdk_clients.py ALICE_KEY BOB_KEY
"""

import json
import sys

import tinker
from tinker import types

TOKENS = [5, 6, 7, 8, 9, 4, 3]
alice, bob = (tinker.ServiceClient(api_key=key) for key in sys.argv[1:])
row = types.Datum(
    model_input=types.ModelInput.from_ints(TOKENS[:-1]),
    loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
)
prompt = types.ModelInput.from_ints(TOKENS[:3])
found = {}


def told(name, call):
    try:
        found[name] = repr(call())
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"


training = alice.create_lora_training_client(base_model="tiny", rank=4, seed=3).result()
path = training.save_state("one").result().path
told("second", lambda: alice.create_lora_training_client(base_model="tiny", rank=4).result())
rest = bob.create_rest_client()
told("run", lambda: rest.get_training_run(training.model_id).result())
told("load", lambda: bob.create_training_client_from_state(path).result())
found["runs"] = len(rest.list_training_runs().result().training_runs)
alice.create_rest_client().publish_checkpoint_from_tinker_path(path).result()
found["public"] = bob.create_training_client_from_state(path).result().model_id
told("delete", lambda: rest.delete_checkpoint_from_tinker_path(path).result())
for _ in range(2):
    training.forward_backward([row], "cross_entropy").result()
told("trained", lambda: training.forward_backward([row], "cross_entropy").result())
sampler = alice.create_sampling_client(base_model="tiny").result()
sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8, stop=[])).result()
told("sampled", lambda: sampler.sample(prompt, 1, types.SamplingParams(max_tokens=8)).result())
other = bob.create_sampling_client(base_model="tiny").result()
asked = [other.sample(prompt, 1, types.SamplingParams(max_tokens=4, stop=[])) for _ in range(4)]
found["answered"] = [len(one.result().sequences[0].tokens) for one in asked]
stranger = tinker.ServiceClient(api_key="tml-nobody-has-this-key")
told("stranger", lambda: stranger.create_sampling_client(base_model="tiny").result())
json.dump(found, sys.stdout)
