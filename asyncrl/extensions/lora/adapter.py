"""Low-rank adapters (LoRA, arXiv 2106.09685) inside a causal LM, by peft.

The adapter's layers replace the linear ones in place, so the model stays the class it was; its base weights are frozen.
With the adapter off it is the base model, which serves as the reference without a second copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from asyncrl.config import Config, LoraConfig
from asyncrl.errors import ConfigError
from asyncrl.extensions.lora.peft_form import PREFIX, TENSORS, adapter_config
from asyncrl.train.models.checkpoint_form import VersionForm

NAME = "default"
"""What peft calls the one adapter."""
INSIDE = f".{NAME}."


def adapting(config: Config) -> AddedAdapter:
    """Return what adds a run's adapter to its policy, and to copies of it."""
    return AddedAdapter(config.lora, config.run.seed)


def adapters(lora: LoraConfig, seed: int) -> list[AddedAdapter]:
    """Return what adds an adapter to a model; nothing for a rank of 0."""
    return [AddedAdapter(lora, seed)] if lora.rank else []


@dataclass(frozen=True, slots=True)
class AddedAdapter:
    """Implements `ForwardChange`: an adapter is trained, and nothing else of the model."""

    lora: LoraConfig
    seed: int
    follows_records: ClassVar[bool] = False

    def apply(self, model: Any, path: str, text_alone: bool) -> None:
        """See `ForwardChange`. Raises `ConfigError` for a vision model, and for layers that the model has not."""
        if not text_alone:
            raise ConfigError(
                f"model.lora.rank: must be 0 for {path}, a vision model: all its weights are trained"
            )
        add_adapter(model, self.lora, self.seed)


def add_adapter(model: nn.Module, lora: LoraConfig, seed: int) -> None:
    """Freeze `model` and add a trainable adapter that changes nothing yet: B is zero, A is drawn by `seed`.

    Raises `ConfigError` naming the layers there are when one of `lora.target_modules` is not among them.
    """
    linear = {name.rpartition(".")[2] for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    missing = [name for name in lora.target_modules if name not in linear]
    if missing:
        known = ", ".join(sorted(linear - {"lm_head"}))
        raise ConfigError(
            f"lora.target_modules: the model has no linear layer {missing[0]!r}; allowed: {known}"
        )
    import peft  # Takes two seconds, which a run without an adapter need not wait.

    settings = adapter_config(lora, "") | {"inference_mode": False}
    model.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        peft.inject_adapter_in_model(peft.LoraConfig(**settings), model, NAME)
    setattr(model, "version_form", AdapterForm())  # noqa: B010 - mypy takes a module's attributes for tensors


def _adapted_layers(model: nn.Module) -> dict[str, Any]:
    """Return peft's layers (`LoraLayer`) by their names."""
    return {name: part for name, part in model.named_modules() if hasattr(part, "lora_A")}


class AdapterForm(VersionForm):
    """A version is the adapter."""

    def parameters(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """See `VersionForm`. The names are those in peft's files."""
        for name, parameter in model.named_parameters():
            if INSIDE in name:
                yield PREFIX + name.replace(INSIDE, "."), parameter

    def checkpoint(
        self, model: nn.Module, tensors: Iterator[tuple[str, Tensor]]
    ) -> Iterator[tuple[str, Tensor]]:
        """See `VersionForm`."""
        return tensors

    def whole_model(
        self, model: nn.Module, gathered: Callable[[list[nn.Parameter]], AbstractContextManager[Any]]
    ) -> Iterator[tuple[str, Tensor]]:
        """See `VersionForm`. The adapter is added to the weights."""
        return merged(model, gathered)

    def untrained(self, model: nn.Module) -> AbstractContextManager[None]:
        """See `VersionForm`: the adapter is off."""
        return adapter_off(model)

    def is_whole(self, name: str) -> bool:
        """See `VersionForm`."""
        return not name.startswith(PREFIX)

    def write_beside(
        self, model: nn.Module, tensors: dict[str, Tensor], folder: Path, base_model: str
    ) -> None:
        """See `VersionForm`."""
        write_adapter(model, tensors, folder / "adapter", base_model)


def merged(
    model: nn.Module, gathered: Callable[[list[nn.Parameter]], AbstractContextManager[Any]]
) -> Iterator[tuple[str, Tensor]]:
    """Yield `(name, tensor)` of the model with the adapter added to its weights, names as without one.

    gathered: makes parameters whole while it is open, as ZeRO-3 needs.
    """
    layers = _adapted_layers(model)
    for name, parameter in model.named_parameters():
        if INSIDE in name:
            continue
        owner, _, last = name.rpartition(".base_layer.")
        layer = layers.get(owner) if last == "weight" else None
        factors = [layer.lora_A[NAME].weight, layer.lora_B[NAME].weight] if layer is not None else []
        with gathered([parameter, *factors]):
            tensor = parameter.detach().clone()
            if layer is not None:
                a, b = (factor.detach().float() for factor in factors)
                tensor = (tensor.float() + layer.scaling[NAME] * (b @ a)).to(tensor.dtype)
            yield name.replace(".base_layer.", "."), tensor


def write_adapter(model: Any, tensors: dict[str, Tensor], folder: Path, base_model: str) -> None:
    """Write gathered tensors of an adapter into a new folder, which `PeftModel.from_pretrained` loads.

    It names its base model, a local one by its whole path, so that transformers finds it from anywhere.
    """
    folder.mkdir()
    save_file(tensors, str(folder / TENSORS), metadata={"format": "pt"})
    settings = dataclasses.replace(model.peft_config[NAME], inference_mode=True)
    local = Path(base_model)
    settings.base_model_name_or_path = str(local.resolve()) if local.is_dir() else base_model
    settings.save_pretrained(str(folder))


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Turn the adapter off while it is open, for passes without a gradient."""
    layers = _adapted_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)
