"""What a rank beside rank 0 keeps."""

import torch

from asyncrl.extensions.tinker.policies import AdapterSettings, BaseModel
from asyncrl.extensions.tinker.rank_process import Forms


def test_a_rank_keeps_an_adapter_of_each_form_of_those_used_last(tiny_model):
    base = BaseModel(tiny_model, "float32", most_tokens=64)
    forms = Forms(base, most=2)
    first = forms.of(AdapterSettings(rank=4, seed=1))
    parameter = next(iter(first.parameters.values()))
    parameter.grad = torch.ones_like(parameter)
    # Another policy's of the same form: its values come with the request, and no gradient is left of the one before.
    assert forms.of(AdapterSettings(rank=4, seed=2)) is first and parameter.grad is None
    second = forms.of(AdapterSettings(rank=4, seed=1, mlp=False))
    assert second is not first and len(second.parameters) < len(first.parameters)
    forms.of(AdapterSettings(rank=4, seed=3))
    forms.of(AdapterSettings(rank=2, seed=1))
    assert forms.of(AdapterSettings(rank=4, seed=4)) is first
    assert forms.of(AdapterSettings(rank=4, seed=1, mlp=False)) is not second
    names = {name for _, layer in base.adapted() for name in layer.lora_A}
    assert len(names) == 2
