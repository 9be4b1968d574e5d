"""What the trainer's own code allocates: a step of the recipe's longest rows, run on fake tensors.

The model's class, the losses, the auxiliary models and the micro-batch are those of a run. Only the loading of weights,
DeepSpeed and the values are left out; `asyncrl.extensions.planning.states` adds what DeepSpeed keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from asyncrl import model_kinds
from asyncrl.algo import inputs as loss_inputs
from asyncrl.algo.inputs import totals_of
from asyncrl.algo.objective import build_objective
from asyncrl.config import Config, TrainConfig
from asyncrl.extensions.critic import part as critics
from asyncrl.extensions.other_optimizers.memory import moment_bytes
from asyncrl.extensions.planning.fake import fake_tensors
from asyncrl.extensions.planning.states import PERSISTENT, Size
from asyncrl.extensions.planning.step_memory import Activations, StepMemory
from asyncrl.train.engine.deepspeed_engine import TrainEngine
from asyncrl.train.models import loading, prefix_tree
from asyncrl.train.parts import needed_models as models
from asyncrl.train.parts.frozen import DividedPolicy, FrozenPolicy
from asyncrl.train.parts.needed_models import load_auxiliary_models, load_trained
from asyncrl.train.step.auxiliary_models import AuxiliaryModels
from asyncrl.train.step.gradient import Step, micro_batch, ratio_statistics, serve
from asyncrl.train.step.ragged import Ragged
from asyncrl.train.step.step_batch import StepBatch
from asyncrl.train.step.step_settings import StepSettings
from asyncrl.train.step.step_tensors import StepTensors
from asyncrl.types import ANSWER_IDS, Status, Trajectory, Turn


class PlannedEngine(TrainEngine):
    """A `TrainEngine` without DeepSpeed: its model runs, and each gradient is dropped where DeepSpeed takes it."""

    def __init__(self, policy: nn.Module, train: TrainConfig, dtype: str) -> None:
        super().__init__(policy, train.model_copy(update={"sequence_parallel": 1}), dtype)
        for parameter in policy.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._take_gradient)
        self.on_gradient: Callable[[], None] = lambda: None
        """Called at each gradient of a weight."""

    def _join(self) -> tuple[int, int]:
        return 0, 1

    def _initialize(self, policy: nn.Module, train: TrainConfig) -> Any:
        return _Module(policy)

    def _take_gradient(self, parameter: Tensor) -> None:
        parameter.grad = None
        self.on_gradient()

    def backward(self, loss: Tensor, last: bool) -> None:
        loss.backward()


class _Module:
    """What DeepSpeed's engine is to the rest of the trainer."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.device = torch.device("cpu")

    def __call__(self, *args: Any, **more: Any) -> Any:
        return self.module(*args, **more)


def measure_step(config: Config, shapes: dict[str, dict[str, Any]]) -> StepMemory:
    """Run one micro-batch of the longest rows for `config`.

    shapes: the `config.json` of "policy", and of "reference" and "teacher" where these are other models.
    """
    # A kernel does not run on tensors without values. The plain way takes about as much.
    plain = config.train.model_copy(update={"fused_logprobs": False})
    config = config.model_copy(update={"train": plain})
    objective = build_objective(config.algo)
    policy_shape = shapes["policy"]
    vocab_size = policy_shape.get("text_config", policy_shape)["vocab_size"]
    by_path = {getattr(config, name).path: shape for name, shape in shapes.items() if name != "policy"}
    batch, settings = longest_rows(config, vocab_size), StepSettings.of(config)
    with fake_tensors(vocab_size) as tracker, _loads(policy_shape, by_path):
        policy = load_trained(config, objective, "policy")
        engine = PlannedEngine(policy, config.train, config.model.dtype)
        auxiliary = load_auxiliary_models(config, objective, engine, "policy")
        found = StepMemory(_weights(policy, config.train.optimizer), rows=len(batch.trajectories))
        _auxiliary_weights(auxiliary, found, config.train.optimizer)
        tracker.forget_all()
        tracker.begin("passes")
        tensors = auxiliary.step_tensors(engine, batch, settings, settings.num_minibatches)
        tracker.begin("before gradients")
        for one in (engine, *auxiliary.trained_engines.values()):
            if isinstance(one, PlannedEngine):
                one.on_gradient = partial(tracker.begin, "with gradients")
        _train(engine, auxiliary, objective, batch, tensors, settings)
    found.passes, found.before_gradients, found.with_gradients = (
        # Ranks that compute rows together have a part of the tokens each, in attention of the heads.
        Activations(
            tracker.peaks[name].bytes // config.train.sequence_parallel,
            tracker.peaks[name].by_kind.get("logits", 0),
        )
        for name in ("passes", "before gradients", "with gradients")
    )
    return found


def _train(
    engine: PlannedEngine, auxiliary: AuxiliaryModels, objective: Any, batch: StepBatch, tensors: StepTensors,
    settings: StepSettings,
) -> None:  # fmt: skip
    rows = list(range(len(batch.trajectories)))
    if objective.needs_values:
        tensors.tensors.setdefault("returns", Ragged.full(batch.counts))
    tensors.tensors["advantages"] = Ragged.full(batch.counts)
    step = Step(
        engine, objective, auxiliary, batch, tensors, settings, 1e-6, objective.kl_coef, lambda found: None,
    )  # fmt: skip
    totals = totals_of(torch.from_numpy(batch.counts), batch.group, objective.horizon or settings.horizon)
    micro_batch(step, serve(step, [[rows]]), rows, totals, ratio_statistics(step, rows), True)


def longest_rows(config: Config, vocab_size: int) -> StepBatch:
    """Return a batch of one micro-batch: rows of the most tokens a trajectory may have, all but the first sampled,
    with no prefix in common."""
    length = config.max_tokens
    count = max(1, config.train.micro_batch_tokens // length)
    mask = np.arange(length) > 0
    rng = np.random.default_rng(0)
    rows = tuple(
        Trajectory(
            task_id="longest",
            episode_index=index,
            token_ids=rng.integers(0, vocab_size, length).astype(np.int32),
            loss_mask=mask,
            behavior_logprobs=np.where(mask, -1.0, 0.0).astype(np.float32),
            versions=np.where(mask, 0, -1).astype(np.int32),
            turns=(Turn(1, length, float(index % 2)),),
            reward=float(index % 2),
            status=Status.FINISHED,
            info={"greedy_reward": 0.0, ANSWER_IDS: [0]},
        )
        for index in range(count)
    )
    return StepBatch(rows, torch.zeros(count, dtype=torch.long), 0)


@contextmanager
def _loads(shape: dict[str, Any], by_path: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Have models made from their descriptions where the trainer's code loads them."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers import initialization as initial

    def from_pretrained(path: str, dtype: torch.dtype = torch.float32, **_: Any) -> Any:
        values = dict(by_path.get(path, shape))
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        with initial.no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
        model.tie_weights()
        return model.eval()

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(AutoModelForCausalLM, "from_pretrained", from_pretrained))
        stack.enter_context(mock.patch.object(nn.Module, "_apply", _apply))
        # Whether values are finite, or agree, cannot be asked.
        stack.enter_context(mock.patch.object(loss_inputs, "check_finite"))
        stack.enter_context(mock.patch.object(loading, "check_logits"))
        # No engine has recorded anything.
        unrecorded = partial(models.forward_changes, of_records=False)
        stack.enter_context(mock.patch.object(models, "forward_changes", unrecorded))
        # Vision models have been refused.
        stack.enter_context(mock.patch.object(model_kinds, "kind_of", return_value=None))
        stack.enter_context(mock.patch.object(critics, "TrainEngine", PlannedEngine))
        for owner in (models, critics):
            stack.enter_context(mock.patch.object(owner, "divided_loading", _not_divided))
        stack.enter_context(mock.patch.object(models, "engine_for_reading", _reading))
        for owner in (loading, critics):
            stack.enter_context(mock.patch.object(owner, "enable_prefix_trees", _enable_prefix_trees))
        stack.enter_context(mock.patch.object(loading, "save_on_cpu", _forget_saved))
        yield


def _not_divided(train: TrainConfig, dtype: str) -> nullcontext[None]:
    return nullcontext()


def _reading(policy: nn.Module, train: TrainConfig, dtype: str) -> _Module:
    return _Module(policy)


def _apply(module: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:
    """Do what `nn.Module._apply` does by putting new parameters in place of the old: it cannot swap fake ones."""
    for child in module.children() if recurse else ():
        child._apply(fn)
    for name, parameter in module._parameters.items():
        if parameter is not None and (changed := fn(parameter.detach())).dtype != parameter.dtype:
            module._parameters[name] = nn.Parameter(changed, parameter.requires_grad)
    return module


def _forget_saved(pin_memory: bool) -> Any:
    """Do what `save_on_cpu` does for the device: what is saved is not there until the backward pass asks for it."""

    def forget(tensor: Tensor) -> Any:
        return (tensor.shape, tensor.dtype) if isinstance(tensor, FakeTensor) else tensor

    def bring_back(kept: Any) -> Tensor:
        return kept if isinstance(kept, Tensor) else torch.empty(kept[0], dtype=kept[1])

    return torch.autograd.graph.saved_tensors_hooks(forget, bring_back)


def _enable_prefix_trees(model: Any) -> bool:
    """Have trees used where the model takes them. That its results agree cannot be seen without values."""
    if not prefix_tree.may_take_prefix_trees(model):
        return False
    model.set_attn_implementation(prefix_tree.NAME)
    tree = prefix_tree.build_tree(np.arange(8).reshape(1, 8), np.array([8]))
    try:
        with torch.no_grad():
            prefix_tree.run_trunk(model.base_model, tree)
    except TypeError:
        model.set_attn_implementation(prefix_tree.INNER)
        return False
    return True


def _weights(model: nn.Module, optimizer: str) -> Size:
    every = list(model.named_parameters())
    trained = [(name, p) for name, p in every if p.requires_grad]
    return Size(
        sum(p.numel() for _, p in every), sum(p.numel() for _, p in trained),
        sum(_bytes(p) for _, p in every),
        sum(_bytes(p) for _, p in trained),
        sum(moment_bytes(optimizer, name, p.shape) for name, p in trained),
        sum(_bytes(p) for _, p in every if p.numel() < PERSISTENT),
    )  # fmt: skip


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _auxiliary_weights(auxiliary: AuxiliaryModels, found: StepMemory, optimizer: str) -> None:
    policies = {name: getattr(part, "policy", part) for name, part in auxiliary.parts.items()}
    for name, policy in policies.items():
        if isinstance(policy, DividedPolicy):
            found.divided[name] = _weights(policy.reading.module, optimizer)
    if "teacher_logits" in auxiliary.objective.needs:
        found.read_in_training = "teacher"
        if isinstance(divided := policies["teacher"], DividedPolicy):
            lm_head = divided.reading.module.model.lm_head
            found.copies["whole vocabulary projection of the teacher"] = sum(
                map(_bytes, lm_head.parameters())
            )
    for name, policy in policies.items():
        model = getattr(policy, "model", None)
        if model is None:
            continue
        offloaded = isinstance(policy, FrozenPolicy) and policy.offload
        (found.offloaded if offloaded else found.copies)[name] = sum(map(_bytes, model.parameters()))
    for engine in auxiliary.trained_engines.values():
        found.critic = _weights(engine.engine.module, optimizer)
