"""Trains for a few steps, saying on its output how far it is; a server that is killed meanwhile is waited for.

python sdk_steps.py SEED [ROWS]
ROWS: of each request; 1 by default.
"""

import sys

import tinker
from tinker import types

texts = ([5, 6, 7, 8, 9], [5, 9, 3, 3], [4, 4, 8, 2])
service = tinker.ServiceClient()
training = service.create_lora_training_client(base_model="tiny", rank=4, seed=int(sys.argv[1])).result()
print(training.model_id, flush=True)


def row(ids):
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )


def rows(first):
    return [row(texts[(first + number) % 3]) for number in range(int((sys.argv[2:] or ["1"])[0]))]


for step in range(5):
    first = training.forward_backward(rows(step), "cross_entropy")
    print(f"sent {step}", flush=True)
    first.result()
    print(f"gradient {step}", flush=True)
    second = training.forward_backward(rows(step + 1), "cross_entropy")
    taken = training.optim_step(types.AdamParams(learning_rate=0.01))
    print(f"both {step}", flush=True)
    second.result()
    taken.result()
    print(f"step {step}", flush=True)
print(training.save_state("end").result().path, flush=True)
