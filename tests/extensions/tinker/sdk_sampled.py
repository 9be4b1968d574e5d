"""Trains and samples by turns, saying on its output how far it is; a server that is killed meanwhile is waited for.

python sdk_sampled.py SEED ROUNDS
The last line is JSON: what was sampled, and where the weights are.
"""

import json
import sys

import tinker
from tinker import types

seed, rounds = map(int, sys.argv[1:])
TOKENS = [5, 6, 7, 8, 9, 4, 3]
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model="tiny", rank=4, seed=seed).result()
row = types.Datum(
    model_input=types.ModelInput.from_ints(TOKENS[:-1]),
    loss_fn_inputs={"target_tokens": TOKENS[1:], "weights": [1.0] * (len(TOKENS) - 1)},
)
prompt = types.ModelInput.from_ints(TOKENS[:3])
sampled, scored = [], []
for number in range(rounds):
    gradient = training.forward_backward([row], "cross_entropy")
    step = training.optim_step(types.AdamParams(learning_rate=0.02))
    print(f"training {number}", flush=True)
    gradient.result()
    step.result()
    snapshot = training.save_weights_and_get_sampling_client()
    print(f"snapshot {number}", flush=True)
    sampler = snapshot.result()
    print(f"sampler {number}", flush=True)
    asked = [
        sampler.sample(prompt, 2, types.SamplingParams(max_tokens=8, seed=number + 10 * one, stop=[]))
        for one in range(3)
    ]
    score = sampler.compute_logprobs(types.ModelInput.from_ints(TOKENS))
    print(f"sampling {number}", flush=True)
    sampled += [[one.tokens, one.logprobs] for future in asked for one in future.result().sequences]
    scored.append(score.result()[1:])
    print(f"sampled {number}", flush=True)
path = training.save_state("end").result().path
print(json.dumps({"sampled": sampled, "scored": scored, "path": path}), flush=True)
