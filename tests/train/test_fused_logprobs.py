"""liger-kernel's fused kernel gives the log-probabilities and gradients of the plain way."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from asyncrl.config import load_config
from asyncrl.errors import ConfigError
from asyncrl.gpus import INTERPRETER, check_fused_kernel
from asyncrl.launch.checks.check import check_run
from asyncrl.train.models.fused_logprobs import can_fuse
from asyncrl.train.models.token_scores import Compared, Head
from tests.docs.blocks import ROOT


@pytest.fixture(scope="module")
def found(tiny_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("fused") / "found.json"
    command = [sys.executable, "-m", "tests.train.fused_step", tiny_model, str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {INTERPRETER: "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(("head", "apart"), [("float32", 1e-5), ("bfloat16", 0.01)])
def test_tokens_with_gradients_of_their_own_have_those_of_the_plain_way(found, head, apart):
    assert all(value < apart for value in found["heads"][head].values()), found["heads"][head]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 3])
def test_steps_of_policy_and_reference_are_those_of_the_plain_way(found, stage):
    plain, fused, weights = found[f"zero_{stage}"]
    assert fused == pytest.approx(plain, rel=1e-4) and plain["reference_kl"] > 0
    assert weights["apart"] < 1e-5


@pytest.mark.parametrize(
    ("config", "temperature", "want", "tokens"),
    [
        ({}, 0.7, (), 5),
        ({}, 1.0, ("entropy",), 5),
        ({"logit_scale": 0.1}, 1.0, (), 5),
        ({"logits_scaling": 8.0}, 1.0, (), 5),
        ({"final_logit_softcapping": 5.0}, 1.0, (), 5),
        ({}, 1.0, (), 0),
    ],
)
def test_what_the_kernel_cannot_compute_stays_plain(config, temperature, want, tokens):
    head = Head(nn.Linear(4, 8, bias=False), SimpleNamespace(**config))
    assert not can_fuse(head, temperature, want, tokens)


def test_what_compares_whole_distributions_stays_plain():
    head = Head(nn.Linear(4, 8, bias=False), SimpleNamespace())
    compared = Compared("kl", torch.zeros(5, 4), lambda logits, states, temperature: logits.sum(-1))
    assert can_fuse(head, 1.0, (), 5)
    assert not can_fuse(head, 1.0, (), 5, compared)
    assert can_fuse(Head(head.module, SimpleNamespace()), 1.0, ("values",), 5)
    assert not can_fuse(Head(nn.Linear(4, 8), SimpleNamespace()), 1.0, (), 5)


def test_a_run_without_a_gpu_is_refused(monkeypatch):
    monkeypatch.delenv(INTERPRETER, raising=False)
    with pytest.raises(ConfigError, match=r"train\.fused_logprobs: the kernel needs a GPU"):
        check_run(load_config("gridworld_grpo", ["train.fused_logprobs=true"]))
    monkeypatch.setenv(INTERPRETER, "1")
    check_fused_kernel()
