"""Adapters that are trained on one frozen model, each by a client of its own.

A policy is a low-rank adapter (LoRA, arXiv 2106.09685) with its gradient and an AdamW. What is computed for one depends
on no other: the rows of a request are never joined with another's, and the sums are made in one order. So a policy ends
bit by bit where it would alone, and requests that are carried out again give what they gave.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from asyncrl.cache import whole_file
from asyncrl.config import LoraConfig
from asyncrl.errors import ConfigError, InputError
from asyncrl.extensions.lora.peft_form import PREFIX, TENSORS, adapter_config, write_adapter_config
from asyncrl.extensions.tinker.losses import Inputs, Loss, Settings, loss_of
from asyncrl.extensions.tinker.messages import AdamParams
from asyncrl.extensions.tinker.rows import Row, batches, read_row
from asyncrl.extensions.tinker.wire import ForwardBackward
from asyncrl.train.models.loading import load_model
from asyncrl.train.models.policy import NO_EXTRAS, PolicyModel, check_logits, computing_device, run_rows
from asyncrl.train.models.prefix_tree import without_trees
from asyncrl.train.models.token_scores import score_tokens

ALPHA = 32
"""The adapters' scale is ALPHA / rank, as in the service that the protocol is of."""
ATTENTION = ("attn", "attention")
"""Parts of the names of modules whose linear layers are those of attention; the others' are of the MLP."""
MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW keeps of each parameter."""
LORA_PARTS = ("lora_A", "lora_B")


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """What an adapter is made by."""

    rank: int
    seed: int
    attention: bool = True
    mlp: bool = True


class BaseModel:
    """The frozen model, and the adapters in it.

    path: a model folder or hub name. dtype: of its weights; adapters are float32. most_tokens: in a padded batch.
    Raises `ConfigError` for a model that cannot be trained.
    """

    def __init__(self, path: str, dtype: str, most_tokens: int) -> None:
        self.path, self.most_tokens = path, most_tokens
        model, rows = load_model(path, dtype, torch.cuda.is_available(), False)
        if rows is not run_rows:
            raise ConfigError(
                f"--model {path}: is a vision model; this server trains those that read text alone"
            )
        self._linear = _linear_layers(model)
        model.requires_grad_(False)
        self._policy = PolicyModel(model).to(computing_device())
        check_logits(self._policy, path)
        self.model: Any = self._policy.model.train()
        config = model.config.get_text_config()
        self.vocab_size: int = config.vocab_size
        self.context: int = getattr(config, "max_position_embeddings", 0) or 2**31
        self.architecture: str = model.config.model_type
        self._names = (f"p{number}" for number in itertools.count())
        self.compute: Compute = TrainedAdapter.compute

    def layers(self, settings: AdapterSettings) -> list[str]:
        """Return the names of the linear layers that an adapter is added to. Raises `InputError` for none."""
        found = [
            name for name, is_attention in self._linear.items()
            if (settings.attention if is_attention else settings.mlp)
        ]  # fmt: skip
        if not found:
            raise InputError(
                "lora_config: trains neither attention nor MLP layers; there is nothing to train"
            )
        return found

    def add(self, settings: AdapterSettings) -> TrainedAdapter:
        """Add an adapter that changes nothing yet: its B is zero, its A drawn by the seed."""
        name = next(self._names)
        made = peft.LoraConfig(**adapter_config(self.lora(settings), self.path) | {"inference_mode": False})
        with torch.random.fork_rng(devices=[]), _several_adapters():
            torch.manual_seed(settings.seed)
            peft.inject_adapter_in_model(made, self.model, name)
        return TrainedAdapter(self, name, settings)

    def lora(self, settings: AdapterSettings) -> LoraConfig:
        """Return an adapter's settings as files have them."""
        return LoraConfig(rank=settings.rank, alpha=ALPHA, target_modules=self.layers(settings))

    def adapted(self) -> Iterator[tuple[str, Any]]:
        """Yield peft's layers by their names."""
        for name, part in self.model.named_modules():
            if hasattr(part, "lora_A"):
                yield name, part

    @contextlib.contextmanager
    def active(self, name: str) -> Iterator[None]:
        """Compute with one adapter, and none of the others."""
        for _, layer in self.adapted():
            layer.set_adapter([name])
        yield

    def log_probabilities(self, rows: Sequence[Row]) -> list[Tensor]:
        """Return the log-probabilities [M] float32 of each row's targets, with the active adapter."""
        device, longest = self.model.device, max(len(row.tokens) for row in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        for index, row in enumerate(rows):
            ids[index, : len(row.tokens)] = torch.from_numpy(row.tokens)
        # Padding is on the right, where no token that counts can see it.
        without_trees(self.model)
        hidden = run_rows(self.model.base_model, ids.to(device), NO_EXTRAS, {})
        counts = [len(row.positions) for row in rows]
        of_row = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts))
        positions = torch.from_numpy(np.concatenate([row.positions for row in rows]))
        targets = torch.from_numpy(np.concatenate([row.targets for row in rows])).to(device)
        states = hidden[of_row.to(device), positions.to(device)]
        score = partial(score_tokens, targets, self.vocab_size, 1.0, (), None)
        logp: Tensor = self.model.lm_head(states, score)["logp"]
        return list(logp.float().split(counts))


def _linear_layers(model: nn.Module) -> dict[str, bool]:
    """Return the last names of a model's linear layers but its projection to the vocabulary, and whether they are of
    attention."""
    found: dict[str, bool] = {}
    for name, part in model.named_modules():
        owner, _, last = name.rpartition(".")
        if isinstance(part, nn.Linear) and last != "lm_head":
            found[last] = any(word in owner.lower() for word in ATTENTION)
    return found


class TrainedAdapter:
    """One adapter of a `BaseModel`: what its gradients are summed up in, and what they are applied by."""

    def __init__(self, base: BaseModel, name: str, settings: AdapterSettings) -> None:
        self.base, self.name, self.settings = base, name, settings
        self.parameters = {
            f"{PREFIX}{layer}.{part}.weight": getattr(found, part)[name].weight
            for layer, found in base.adapted() if name in found.lora_A
            for part in LORA_PARTS
        }  # fmt: skip
        self._adam = self._new_adam()

    def _new_adam(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self.parameters.values(), lr=0.0, weight_decay=0.0, foreach=False, fused=False
        )

    def forward_backward(self, request: ForwardBackward) -> tuple[list[np.ndarray], dict[str, float]]:
        """Return the log-probabilities of each row's targets, and metrics; add the loss's gradient.

        Raises `InputError`, after which the gradient is what it was.
        """
        loss = loss_of(request.loss, request.settings)
        if not request.data:
            raise InputError("data: must hold rows")
        rows = [
            read_row(index, datum, loss, self.base.vocab_size, self.base.context)
            for index, datum in enumerate(request.data)
        ]
        with (
            self.base.active(self.name),
            self._all_or_nothing(),
            torch.set_grad_enabled(not request.forward_only),
        ):
            answers, summed = self.base.compute(self, rows, request)
        return answers, {"loss:sum": summed}

    def compute(self, rows: Sequence[Row], request: ForwardBackward) -> tuple[list[np.ndarray], float]:
        """See `Compute`: here, in this process."""
        loss, summed = loss_of(request.loss, request.settings), 0.0
        answers: list[np.ndarray] = [np.zeros(0, np.float32)] * len(rows)
        for batch in batches(rows, self.base.most_tokens):
            summed += self._batch(rows, batch, loss, request.settings, answers)
        return answers, summed

    def _batch(
        self,
        rows: Sequence[Row],
        batch: Sequence[int],
        loss: Loss,
        settings: Settings,
        answers: list[np.ndarray],
    ) -> float:
        """Add the gradient of some rows; return their loss, and note their log-probabilities in `answers`."""
        summed = torch.zeros((), device=self.base.model.device)
        for index, logp in zip(batch, self.base.log_probabilities([rows[i] for i in batch]), strict=True):
            row = rows[index]
            inputs: Inputs = {name: torch.from_numpy(one).to(logp) for name, one in row.inputs.items()}
            summed = summed + loss.compute(logp, inputs, settings)
            answers[index] = row.answer(logp.detach().cpu().numpy())
        if summed.requires_grad:
            summed.backward()  # type: ignore[no-untyped-call]
        return float(summed.detach())

    @contextlib.contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Add the gradient that is made inside to the one before, or leave that one after an error."""
        before = {name: parameter.grad for name, parameter in self.parameters.items()}
        for parameter in self.parameters.values():
            parameter.grad = None
        try:
            yield
        except BaseException:
            for name, parameter in self.parameters.items():
                parameter.grad = before[name]
            raise
        for name, parameter in self.parameters.items():
            if (old := before[name]) is not None:
                parameter.grad = old if parameter.grad is None else old.add_(parameter.grad)

    def step(self, params: AdamParams) -> dict[str, float]:
        """Apply the gradient by AdamW and drop it; return metrics."""
        own = [one for one in self.parameters.values() if one.grad is not None]
        most = params.grad_clip_norm if params.grad_clip_norm > 0 else float("inf")
        norm = float(nn.utils.clip_grad_norm_(own, most, foreach=False)) if own else 0.0
        for group in self._adam.param_groups:
            group |= {
                "lr": params.learning_rate,
                "betas": (params.beta1, params.beta2),
                "eps": params.eps,
                "weight_decay": params.weight_decay,
            }
        self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return {"grad_norm": norm}

    def save(self, file: Path) -> None:
        """Write the adapter and its AdamW, whole or not at all. A gradient that was not applied is not in it."""
        tensors = {name: one.detach().cpu() for name, one in self.parameters.items()}
        for name, parameter in self.parameters.items():
            state = self._adam.state.get(parameter, {})
            tensors |= {f"adam.{kind}.{name}": state[kind].cpu() for kind in MOMENTS if kind in state}
        with whole_file(file) as partial_file:
            save_file({name: one.contiguous() for name, one in tensors.items()}, str(partial_file))

    def load(self, file: Path, optimizer: bool) -> None:
        """Read what `save` has written; without `optimizer` AdamW begins anew. Drops the gradient.

        Raises `InputError` for an adapter of another form.
        """
        found = load_file(str(file))
        weights = {name: one for name, one in found.items() if not name.startswith("adam.")}
        mine = {name: one.shape for name, one in self.parameters.items()}
        if {name: one.shape for name, one in weights.items()} != mine:
            raise InputError(f"{file.name}: holds an adapter of another rank or other layers")
        self._adam = self._new_adam()
        for name, parameter in self.parameters.items():
            parameter.data.copy_(weights[name])
            parameter.grad = None
            state = {kind: found.get(f"adam.{kind}.{name}") for kind in MOMENTS}
            if optimizer and state["step"] is not None:
                on_device = {kind: one.to(parameter.device) for kind, one in state.items() if one is not None}
                self._adam.state[parameter] = on_device | {"step": state["step"]}

    def write(self, folder: Path, base_model: str) -> int:
        """Write the adapter alone into a new folder, as peft and vLLM read it; return its bytes. base_model: its name
        for who reads it."""
        folder.mkdir(parents=True)
        tensors = {name: one.detach().cpu().contiguous() for name, one in self.parameters.items()}
        save_file(tensors, str(folder / TENSORS), metadata={"format": "pt"})
        write_adapter_config(folder, self.base.lora(self.settings), base_model)
        return sum(file.stat().st_size for file in folder.iterdir())

    def remove(self) -> None:
        """Take the adapter out of the model. It cannot be used any more."""
        with _several_adapters():
            for _, layer in self.base.adapted():
                if self.name in layer.lora_A:
                    layer.delete_adapter(self.name)


@contextlib.contextmanager
def _several_adapters() -> Iterator[None]:
    """Silence peft's warnings that a model has more than one, and that which one computes changes: both are meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config` attribute")
        warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
        yield


Compute = Callable[[TrainedAdapter, Sequence[Row], ForwardBackward], tuple[list[np.ndarray], float]]
"""Returns the log-probabilities of each row as they are answered, and the loss; gives an adapter that has no gradient,
and is the active one, that of a request's rows. Raises `InputError`."""
