"""Train only the turns at which the policy was least certain.

    weight = 1 on the turns of highest mean entropy, the share `share` of the step's turns rounded up, else 0

Source: DART-GUI, arXiv 2509.23866, from the paper (share 0.8; its released code has this commented out). The paper
chooses among the turns of each task; ours are those of the step, so that a task whose turns are all certain gives way
to others. Turns that tie with the last one chosen are trained, too. The denominators count all tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from asyncrl.algo.inputs import LossInputs
from asyncrl.algo.needs import needs, step_statistics
from asyncrl.extensions.published.loss.atpo import turn_mean
from asyncrl.extensions.published.subset import high_entropy_steps


def least_turn_entropy_of_step(inputs: LossInputs, share: float) -> dict[str, Tensor]:
    """The mean entropy from which on a turn is trained, for `step_statistics`.

    Halfway between the last turn that is trained and the first that is not, so that rounding moves neither.
    """
    mean = turn_mean(inputs.need("entropy").detach(), inputs.need("turn_ids"), inputs.mask)
    first = inputs.mask & _starts(inputs)
    of_turns = mean[first]
    kept = torch.zeros_like(of_turns, dtype=torch.bool)
    kept[high_entropy_steps(of_turns.numpy(force=True), share)] = True
    if kept.all():
        return {"top_entropy_turns_least": mean.new_tensor(-torch.inf)}
    return {"top_entropy_turns_least": (of_turns[kept].min() + of_turns[~kept].max()) / 2}


def _starts(inputs: LossInputs) -> Tensor:
    """[B,T] True at the first sampled token of each turn."""
    turn_ids = torch.where(inputs.mask, inputs.need("turn_ids"), -1)
    # Turns are numbered upwards, so one starts where the number exceeds all before it.
    highest = torch.cummax(turn_ids, dim=-1).values
    before = torch.cat([torch.full_like(highest[:, :1], -1), highest[:, :-1]], dim=-1)
    return turn_ids > before


@needs("entropy", "turns")
@step_statistics(least_turn_entropy_of_step)
def top_entropy_turns(inputs: LossInputs, *, share: float = 0.8) -> Tensor:
    """[B,T] 1 for the tokens of the turns of highest mean entropy, 0 for the others."""
    found = inputs.statistics
    found = found if "top_entropy_turns_least" in found else least_turn_entropy_of_step(inputs, share)
    mean = turn_mean(inputs.need("entropy").detach(), inputs.need("turn_ids"), inputs.mask)
    return ((mean >= found["top_entropy_turns_least"]) & inputs.mask).to(mean.dtype)
