"""Decorators by which a function of the library says what the trainer must do for it.

    @needs("values")                            reads a critic's values
    @needs("sum_pi_squared", score="logit")     does so only where the recipe sets its parameter `score` to "logit"
    @step_statistics(measure)                   reads what `measure` finds in the whole step
    @ratio_statistics(measure)                  reads what `measure` finds in the ratios of one optimizer step
    @group_local                                reads nothing beyond a row's own group
    @reads_no_rewards                           a loss that learns from neither advantages nor rewards
    @weighed_by_advantage                       a loss without a gradient where all advantages of a row are 0
    @zero_where_equal("rewards")                an advantage that is 0 in a group whose episodes agree in that
    @compares_episodes                          an advantage that may compare episodes in place of branches

The marks are also read from the source text without importing the function (`asyncrl.algo.signature`), so a launcher
can tell that a run has a critic without loading torch. Their arguments are therefore written as literals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

KNOWN = {
    "reference": "log-probabilities of a frozen reference policy",
    "teacher": "log-probabilities of a teacher policy",
    "teacher_logits": "full-vocabulary logits of student and teacher",
    "values": "a critic",
    "entropy": "the full-softmax entropy of every token",
    "behavior": "the engine's log-probabilities",
    "proximal": "a proximal policy, the center of the trust region",
    "step_start": "log-probabilities of the policy at the start of the step",
    "snapshots": "log-probabilities of the version that sampled each token",
    "average": "log-probabilities of an exponentially weighted average of past policies",
    "versions": "the version that sampled every token",
    "scores": "trajectory rewards inside the loss",
    "pairs": "whole groups in one micro-batch",
    "answers": "the tokens of each task's right answer",
    "turns": "turn boundaries and turn rewards",
    "observations": "an observation id per turn",
    "matches": "whether each action agrees with a recorded one",
    "components": "named reward components",
    "branches": "where each sequence branches off another",
    "agents": "the agent that produced each sequence",
    "greedy": "a greedy rollout per prompt",
    "baselines": "a per-prompt baseline tracker",
    "role_baselines": "a running mean of the returns of each role",
    "score_norms": "per-trajectory gradient norms",
    "sum_pi_squared": "the sum of squared probabilities of every token",
    "step_statistics": "statistics of the whole step before the first micro-batch",
    "ratio_statistics": "statistics of each optimizer step's ratios to the proximal policy",
}

COMPARED = {
    "rewards": "the reward of each trajectory",
    "turn_rewards": "the rewards of its turns, in order",
    "steps": "observation and reward of each turn, where any turn earned something",
    "components": "its named reward components",
    "matches": "whether each of its actions agrees with a recorded one",
}
"""What the episodes of a group may have to agree in before an advantage is 0 throughout the group."""

F = TypeVar("F", bound=Callable)


@dataclass(frozen=True, slots=True)
class Mark:
    """One decorator on a function."""

    decorator: str
    words: tuple[str, ...] = ()
    """Words of `KNOWN`; of `COMPARED` for `zero_where_equal`."""
    when: dict[str, Any] = field(default_factory=dict)
    """The mark holds where each of these parameters has this value, or one of these where it is a tuple."""
    measure: Callable[..., Any] | None = field(default=None, compare=False)
    """What `step_statistics` and `ratio_statistics` call; None when the mark was read from source text."""

    def failing(self, params: Mapping[str, Any]) -> str | None:
        """Return the parameter whose value keeps the mark from holding; None when it holds."""
        for name, allowed in self.when.items():
            if params.get(name) not in (allowed if isinstance(allowed, tuple) else (allowed,)):
                return name
        return None


def needs(*names: str, **when: Any) -> Callable[[F], F]:
    """Mark a function with what it reads beyond the tensors that every step has.

    Raises ValueError for a word outside `KNOWN`.
    """
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise ValueError(f"unknown need {unknown[0]!r}; allowed: {', '.join(KNOWN)}")
    return _marking(Mark("needs", names, when))


def step_statistics(measure: Callable[..., Mapping[str, Any]], **when: Any) -> Callable[[F], F]:
    """Have `measure(inputs, **params)` called once a step with the `LossInputs` of the whole batch.

    For losses and corrections. The scalars that it returns are in the function's `LossInputs.statistics`, whatever the
    cut into micro-batches. Of the function's parameters it gets those that it names. `inputs.logp` is the policy at
    the start of the step.
    """
    return _marking(Mark("step_statistics", ("step_statistics",), when, measure))


def ratio_statistics(measure: Callable[..., Mapping[str, Any]], **when: Any) -> Callable[[F], F]:
    """Have `measure(log_ratio, **params)` called before each optimizer step.

    `log_ratio` [N] is log pi - log pi_proximal of the sampled tokens that this optimizer step trains, of all ranks.
    Parameters and result are as in `step_statistics`.
    """
    return _marking(Mark("ratio_statistics", ("ratio_statistics",), when, measure))


@overload
def group_local(function: F) -> F: ...
@overload
def group_local(**when: Any) -> Callable[[F], F]: ...
def group_local(function: Callable | None = None, **when: Any) -> Any:
    """Mark an advantage, normalisation or filter that reads nothing beyond the row's own group.

    Only such a one can be used on groups as they arrive (`train.schedule: periodic`).
    """
    mark = _marking(Mark("group_local", (), when))
    return mark if function is None else mark(function)


def reads_no_rewards(function: F) -> F:
    """Mark a loss that reads neither advantages nor rewards, whatever the other parts of its objective say."""
    return _marking(Mark("reads_no_rewards"))(function)


def weighed_by_advantage(function: F) -> F:
    """Mark a loss whose gradient is exactly 0 in a row whose advantages are all 0.

    The trainer then takes no backward pass over such rows, such as those of groups of one outcome.
    """
    return _marking(Mark("weighed_by_advantage"))(function)


def zero_where_equal(*names: str) -> Callable[[F], F]:
    """Mark an advantage that is 0 in every row of a group whose trajectories agree in all of `names`.

    The buffer then drops such groups (`buffer.drop_no_signal`). An advantage without the mark may find a signal in any
    group. Raises ValueError for a word outside `COMPARED`.
    """
    unknown = [name for name in names if name not in COMPARED]
    if unknown:
        raise ValueError(f"unknown quantity {unknown[0]!r}; allowed: {', '.join(COMPARED)}")
    return _marking(Mark("zero_where_equal", names))


def compares_episodes(function: F) -> F:
    """Mark an advantage of one number a row from the rewards of its group, which may compare episodes in place of
    branches (`algo.baseline_unit`)."""
    return _marking(Mark("compares_episodes"))(function)


def marks_of(function: Callable[..., Any]) -> tuple[Mark, ...]:
    """Return the marks of a function, the one nearest to it first."""
    return getattr(function, "marks", ())


def words_of(marks: Iterable[Mark], params: Mapping[str, Any]) -> frozenset[str]:
    """Return the words of `KNOWN` that hold for a function's parameters."""
    needed = (mark for mark in marks if mark.decorator != "zero_where_equal")
    return frozenset(word for mark in needed if mark.failing(params) is None for word in mark.words)


def _marking(mark: Mark) -> Callable[[F], F]:
    def put(function: F) -> F:
        function.marks = (*marks_of(function), mark)  # type: ignore[attr-defined]
        return function

    return put
