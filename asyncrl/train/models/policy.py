"""The trained model as a module: token ids in, log-probabilities of the sampled tokens out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from asyncrl.errors import ConfigError
from asyncrl.train.models.prefix_tree import PrefixTree, run_trunk, tree_of, uses_prefix_trees, without_trees
from asyncrl.train.models.token_scores import Compared, Head, score_tokens
from asyncrl.types import Trajectory

Extras = Mapping[str, Any]
"""What is known of the tokens of B rows besides their ids, by kind, as `asyncrl.data.token_extras.table.padded` gives
it."""
NO_EXTRAS: Extras = MappingProxyType({})
MAX_LOGITS_ERROR = 0.01
"""Relative difference allowed between a model's own logits and those computed here: rounding alone."""
PROBE = "_probe_once_divided"


class TrunkInput(Protocol):
    """What the layers of a model read besides the tokens."""

    kind: str
    """The kind of the extras that it is made of."""
    keyword: str
    """The argument [B,T,...] by which the trunk hands it to its layers; [N,...] for the distinct tokens of a
    tree."""

    def given(self, extras: Extras) -> Tensor | None:
        """Return the argument [B,T,...]; None where rows have none. Rows that share a token agree in it there."""
        ...

    def check(self, trajectory: Trajectory) -> None:
        """Raise `ConfigError` for a trajectory that lacks it."""
        ...

    def probe(self, model: Any) -> None:
        """Find out whether the model reads it. Raises `ConfigError` where it does not."""
        ...


class TrunkHead(Protocol):
    """What reads hidden states besides the vocabulary projection. A module, trained with the policy."""

    def read(
        self, want: tuple[str, ...], hidden: Tensor, tree: PrefixTree | None, target: Tensor
    ) -> dict[str, Tensor]:
        """Return those of `want` that it gives, from hidden states [B,T,H], or [N,H] of a tree's tokens.

        target: [B,T] bool, the sampled tokens but for the first of each row.
        """
        ...


RunRows = Callable[[Any, Tensor, Extras, Mapping[str, Tensor]], Tensor]
"""A trunk, token ids [B,T], extras and further arguments of the trunk to hidden states [B,T,H]."""


def run_rows(trunk: Any, token_ids: Tensor, extras: Extras, more: Mapping[str, Tensor]) -> Tensor:
    """Run a trunk that reads text alone; see `RunRows`."""
    found: Tensor = trunk(input_ids=token_ids, use_cache=False, **more).last_hidden_state
    return found


class PolicyModel(nn.Module):
    """Wraps a causal LM so that the forward pass computes logits only where a token was sampled.

    Prompts and observations need no logits; with short turns they are most of the tokens, and the vocabulary
    projection is most of the memory. Logits are computed a chunk of tokens at a time, and once more in the backward
    pass, so nothing of the size of tokens times vocabulary is kept. Shared prefixes are computed once where the model
    supports it (`asyncrl.train.models.prefix_tree`).

    rows: runs the trunk over rows. inputs: what its layers read besides the tokens. heads: `TrunkHead`s by the names
    of their modules.
    """

    def __init__(
        self,
        model: Any,
        rows: RunRows = run_rows,
        inputs: Sequence[TrunkInput] = (),
        heads: Mapping[str, nn.Module] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.model = model
        self.rows = rows
        self.inputs = tuple(inputs)
        self.fused = False
        """Whether log-probabilities come from a fused kernel where it can (`asyncrl.train.models.fused_logprobs`)."""
        self.model.lm_head.forward = Head(model.lm_head, model.config.get_text_config())
        self.heads = tuple(heads)
        for name, head in heads.items():
            self.add_module(name, head)

    def forward(
        self,
        token_ids: Tensor,
        mask: Tensor,
        temperature: float,
        want: tuple[str, ...] = (),
        compared: Compared | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> dict[str, Tensor]:
        """Return `logp` [B,T] and what `want` names; everything is zero where `mask` is False.

        `logp[b, t]` is the log-probability of `token_ids[b, t]` given what precedes it, at `temperature`.
        Rows are padded on the right: causal attention keeps padding out of every sampled position, so no
        attention mask is needed. `entropy` and `sum_pi_squared` [B,T] are of the full distribution, `compared.name`
        [B,T] is what its comparison gives. A head gives what `TrunkHead.read` says.
        `states` gives the hidden state [M,H] before each sampled token, row by row; wanted alone, without `logp`.
        """
        target = after_first(mask)
        run = self._run(token_ids, mask, target, extras)
        if want == ("states",):
            return {"states": run.of_all(run.states)}
        if compared is not None and run.first is not None:
            compared = compared.at(run.first)
        vocab_size = self.model.config.get_text_config().vocab_size
        score = partial(score_tokens, run.labels, vocab_size, temperature, want, compared)
        head: Head = self.model.lm_head.forward
        if self.fused:
            from asyncrl.train.models.fused_logprobs import can_fuse, fused_logp

            if can_fuse(head, temperature, want, len(run.labels), compared):
                score = partial(fused_logp, head, run.labels)
        found = {
            name: scatter(run.of_all(part), target)
            for name, part in self.model.lm_head(run.states, score).items()
        }
        if "states" in want:
            found["states"] = run.of_all(run.states)
        for name in self.heads:
            reader = cast(TrunkHead, self.get_submodule(name))
            found |= reader.read(want, run.hidden, run.tree, target)
        return found

    def _run(self, token_ids: Tensor, mask: Tensor, target: Tensor, extras: Extras) -> _Run:
        """Run the trunk; with shared prefixes each distinct token is computed and scored once."""
        read = {one.keyword: one.given(extras) for one in self.inputs}
        more = {name: value.to(token_ids.device) for name, value in read.items() if value is not None}
        if not uses_prefix_trees(self.model):
            without_trees(self.model)
            hidden = self.rows(self.model.base_model, token_ids, extras, more)
            return _Run(hidden, hidden[:, :-1][target[:, 1:]], token_ids[target])
        tree = tree_of(token_ids, mask, list(more.values()))
        of_distinct = {name: value.flatten(0, 1)[tree.sources] for name, value in more.items()}
        computed = run_trunk(self.model.base_model, tree, of_distinct)
        chosen, again = torch.unique(tree.rows[target], return_inverse=True)
        first = torch.empty_like(chosen).scatter_(0, again, torch.arange(len(again), device=chosen.device))
        before = tree.parents[chosen]
        mine = tree.mine(before)
        states = computed[before[mine] - tree.part.start]
        return _Run(computed, states, tree.token_ids[chosen[mine]], tree, first[mine], again, mine)


@dataclass(frozen=True, slots=True)
class _Run:
    """What a pass of the trunk gives: on this rank's part of the tokens, where several compute rows together."""

    hidden: Tensor
    """[B,T,H] of the rows or, with a tree, [N,H] of its part that this rank computes."""
    states: Tensor
    """[K,H] before each token to be scored."""
    labels: Tensor
    """[K] their ids."""
    tree: PrefixTree | None = None
    first: Tensor | None = None
    """[K] where each occurs first among all M sampled tokens."""
    again: Tensor | None = None
    """[M] which of the distinct sampled tokens each of them is."""
    mine: Tensor | None = None
    """[distinct] which of these this rank scores: K of them."""

    def of_all(self, part: Tensor) -> Tensor:
        """Return values [M,...] of all sampled tokens for those [K,...] of the scored ones."""
        if self.again is None:
            return part
        assert self.tree is not None and self.mine is not None
        if self.tree.group is not None:
            part = self.tree.group.join(part, self.mine)
        return part.index_select(0, self.again)


def after_first(mask: Tensor) -> Tensor:
    """Return `mask` [B,T] without the first token of each row, which nothing precedes."""
    target = mask.clone()
    target[:, 0] = False
    return target


def scatter(values: Tensor, mask: Tensor) -> Tensor:
    """Place [N,...] values at the True positions of [B,T] `mask`, zeros elsewhere; keeps the gradient."""
    shape = (*mask.shape, *values.shape[1:])
    where = mask if values.ndim == 1 else mask[..., None].expand(shape)
    return torch.zeros(shape, dtype=values.dtype, device=values.device).masked_scatter(where, values)


@torch.no_grad()
def check_logits(policy: PolicyModel, path: str) -> None:
    """Raise `ConfigError` when the model's own forward pass does not end in what is computed here."""
    policy.eval()
    token_ids = torch.arange(4, device=policy.model.device)[None]
    trunk = policy.model.base_model(input_ids=token_ids, use_cache=False).last_hidden_state
    # Called as a module, so that ZeRO-3 gathers its weight.
    ours = policy.model.lm_head(trunk, lambda project, _, states: project(states)).float()
    own = policy.model(input_ids=token_ids, use_cache=False).logits.float()
    if not float((ours - own).norm()) <= MAX_LOGITS_ERROR * float(own.norm()):
        raise ConfigError(
            f"model.path: {path}: the logits of {type(policy.model).__name__} are not its lm_head's, so its "
            "log-probabilities cannot be computed in chunks; it cannot be trained"
        )


def when_it_computes(module: nn.Module, model: Any, probe: Callable[[], Any]) -> None:
    """Run what needs a forward pass of a loaded `model`, where it computes; leave that of a divided one to its engine.

    The module stays there, as all who load one want it: on the CPU beside a GPU the pass of a model of 8 billion
    parameters takes minutes, with the one thread that each rank has.
    """
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        module.__dict__[PROBE] = probe
    else:
        module.to(computing_device())
        probe()


def computing_device() -> torch.device:
    """Return this process's GPU, the CPU where it has none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def probe(module: nn.Module) -> None:
    """Run what a loaded module left to be run once a DeepSpeed engine has it. A collective under ZeRO-3."""
    training = module.training
    module.__dict__.pop(PROBE, lambda: None)()
    module.train(training)
