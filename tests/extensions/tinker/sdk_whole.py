"""A script of Tinker's SDK that goes through all that a training client does; prints what it was answered, as JSON."""

import json
import sys

import tinker
from tinker import types

name, tokens = "tiny", [5, 6, 7, 8, 9, 4, 3]
service = tinker.ServiceClient()


def row(ids):
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},
    )


def numbers(result):
    return [one["logprobs"].tolist() for one in result.loss_fn_outputs]


found = {}
training = service.create_lora_training_client(base_model=name, rank=4, seed=3).result()
data = [row(tokens), row(tokens[:4])]
found["untrained"] = numbers(training.forward(data, "cross_entropy").result())
found["losses"] = []
for _ in range(3):
    gradient = training.forward_backward(data, "cross_entropy")
    step = training.optim_step(types.AdamParams(learning_rate=0.01))
    found["losses"].append(gradient.result().metrics["loss:sum"])
    assert step.result().metrics["grad_norm"] > 0
found["trained"] = numbers(training.forward(data, "cross_entropy").result())

sampler = training.save_weights_and_get_sampling_client().result()
prompt = types.ModelInput.from_ints(tokens[:3])
params = types.SamplingParams(max_tokens=6, temperature=1.0, seed=5, stop=[])
answer = sampler.sample(prompt, 3, params, include_prompt_logprobs=True, topk_sample_logprobs=2).result()
found["samples"] = [[one.tokens, one.logprobs, one.stop_reason] for one in answer.sequences]
found["likeliest"] = answer.sequences[0].topk_logprobs_np.token_ids.tolist()
found["prompt"] = answer.prompt_logprobs
found["scored"] = sampler.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
base = service.create_sampling_client(base_model=name).result()
found["base"] = base.compute_logprobs(types.ModelInput.from_ints(tokens)).result()
one = base.sample(prompt, 1, types.SamplingParams(max_tokens=6, temperature=0.0)).result().sequences[0]
ended = base.sample(
    prompt, 1, types.SamplingParams(max_tokens=6, temperature=0.0, stop=[one.tokens[1]])
).result()
found["stopped"] = [one.tokens, ended.sequences[0].tokens, ended.sequences[0].stop_reason]
text = training.get_tokenizer().decode([one.tokens[1]])
if text:
    by_text = base.sample(
        prompt, 1, types.SamplingParams(max_tokens=6, temperature=0.0, stop=[text])
    ).result()
    found["stopped"].append(by_text.sequences[0].tokens)

path = training.save_state("one").result().path
found["path"] = path
loaded = service.create_training_client_from_state_with_optimizer(path).result()
found["loaded"] = numbers(loaded.forward(data, "cross_entropy").result())
named = training.save_weights_for_sampler("two").result().path
again = service.create_sampling_client(model_path=named).result()
found["again"] = again.compute_logprobs(types.ModelInput.from_ints(tokens)).result()


def squares(rows, logprobs):
    loss = sum((one**2).sum() for one in logprobs)
    return loss, {"squares": loss.item()}


found["custom"] = dict(training.forward_backward_custom(data, squares).result().metrics)
behavior = numbers(training.forward(data[:1], "cross_entropy").result())[0]
for loss in ("importance_sampling", "ppo", "cispo"):
    datum = types.Datum(
        model_input=data[0].model_input,
        loss_fn_inputs={
            "target_tokens": tokens[1:], "logprobs": behavior, "advantages": [0.5] * len(behavior),
        },
    )  # fmt: skip
    found[loss] = training.forward_backward([datum], loss).result().metrics["loss:sum"]

rest = service.create_rest_client()
found["checkpoints"] = sorted(
    c.tinker_path for c in rest.list_checkpoints(training.model_id).result().checkpoints
)
run = rest.get_training_run(training.model_id).result()
found["run"] = [run.base_model, run.lora_rank, run.is_lora]
rest.delete_checkpoint_from_tinker_path(path).result()
found["left"] = [c.tinker_path for c in rest.list_checkpoints(training.model_id).result().checkpoints]
refused = []
for call in (
    lambda: service.create_lora_training_client(base_model="other", rank=4).result(),
    lambda: service.create_lora_training_client(base_model=name, rank=64).result(),
    lambda: training.forward(data[:1], "dro").result(),
):
    try:
        call()
    except Exception as error:
        refused.append(f"{type(error).__name__}: {error}")
found["refused"] = refused
service.close("success").result()
try:
    training.forward(data, "cross_entropy").result()
except Exception as error:
    found["closed"] = f"{type(error).__name__}: {error}"
json.dump(found, sys.stdout)
