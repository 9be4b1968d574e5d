"""Twenty sampling clients and one that trains, at once; prints how many requests were answered, and their times."""

import json
import sys
import threading
import time

import tinker
from tinker import types

CLIENTS, REQUESTS = 20, 5
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model="tiny", rank=4, seed=1).result()
sampler = training.save_weights_and_get_sampling_client().result()
took, failed, steps = [], [], 0
row = types.Datum(
    model_input=types.ModelInput.from_ints([5, 6, 7]),
    loss_fn_inputs={"target_tokens": [6, 7, 8], "weights": [1.0, 1.0, 1.0]},
)


def sample(client):
    own = tinker.ServiceClient().create_sampling_client(base_model="tiny").result() if client % 2 else sampler
    for _ in range(REQUESTS):
        start = time.monotonic()
        try:
            prompt = types.ModelInput.from_ints([5, 6, 4 + client % 4])
            found = own.sample(prompt, 2, types.SamplingParams(max_tokens=8)).result()
            assert all(1 <= len(one.tokens) == len(one.logprobs) for one in found.sequences)
            took.append(time.monotonic() - start)
        except Exception as error:
            failed.append(repr(error))


clients = [threading.Thread(target=sample, args=(number,)) for number in range(CLIENTS)]
for client in clients:
    client.start()
while any(client.is_alive() for client in clients) or steps < 3:
    training.forward_backward([row], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    steps += 1
for client in clients:
    client.join()
took.sort()
json.dump({"answered": len(took), "failed": failed, "steps": steps, "p50_s": took[len(took) // 2],
           "p99_s": took[int(0.99 * (len(took) - 1))]}, sys.stdout)  # fmt: skip
