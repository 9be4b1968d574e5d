"""What a judge rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, greedy_baseline, ruled_out
from asyncrl.extensions.judge.settings import DEFAULT_PROMPT, ComponentConfig, JudgeConfig


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a judge beside an agent, and keys of `[judge]` that do not fit together."""
    judge = recipe.section(JudgeConfig)
    if judge.active and recipe.env.name == "agent":
        key, given = ("judge.url", judge.url) if judge.url else ("judge.components", sorted(judge.components))
        yield (
            f"{key} must be left out for env.name='agent', whose agent reports its own reward, got {given!r}"
        )
    yield from _unread(judge)
    if judge.relative != "off":
        yield from _relative_problems(recipe, judge)
    if judge.url and judge.kind == "chat":
        yield from _prompt_problems(judge)


def _unread(judge: JudgeConfig) -> Iterator[str]:
    """Yield what no judge of this kind would be asked."""
    asked = [
        ("components with a rubric", bool(judge.rubrics)),
        ("per_turn", judge.per_turn),
        ("samples", judge.samples > 1),
    ]
    for key, given in asked:
        if given and not judge.url:
            yield f"judge.url: must be given with judge.{key}, which a chat judge is asked for"
        elif given and judge.kind == "score":
            yield f"judge.kind: must be 'chat' with judge.{key}, got 'score', whose server gives one number"
    if judge.vote != "mean" and judge.samples == 1:
        yield f"judge.vote: is not read with judge.samples=1, got {judge.vote!r}"
    if judge.max_requests and not judge.url:
        yield f"judge.max_requests: is not read without a judge.url, got {judge.max_requests}"
    if judge.url and judge.functions and not judge.rubrics and not judge.per_turn:
        yield (
            "judge.components: must have one with a rubric where there is a judge.url: the score is the sum of "
            f"components, and all of {sorted(judge.functions)} are functions"
        )


def _relative_problems(recipe: Recipe, judge: JudgeConfig) -> Iterator[str]:
    """Yield what a judge that compares episodes does not do, and groups in which there is nothing to compare."""
    scored = [
        name
        for name, one in judge.rubrics.items()
        if one.weight != 1.0 or one.scale != ComponentConfig(rubric="x").scale
    ]
    yield from ruled_out(
        f"with judge.relative={judge.relative!r}",
        ("judge.url", not judge.url, "given", "a chat judge compares the episodes"),
        (
            "judge.kind",
            judge.kind != "chat",
            "'chat'",
            "a reward model's server scores conversations one by one",
        ),
        ("judge.per_turn", judge.per_turn, "false", "turns of different episodes are not compared"),
        ("judge.samples", judge.samples > 1, "1", "each question is asked once in either order"),
        ("judge.prompt", judge.prompt != DEFAULT_PROMPT, "left out", "it asks for one episode's score"),
        (
            f"judge.components.{next(iter(judge.functions), '')}",
            bool(judge.functions),
            "left out",
            "a function scores episodes one by one",
        ),
        (
            f"weight and scale of judge.components.{next(iter(scored), '')}",
            bool(scored),
            "left out",
            "components are criteria then, and have no scores of their own",
        ),
        (
            "rollout.group_size",
            recipe.rollout.group_size < 2,
            "at least 2",
            "there is nothing to compare with",
        ),
    )


def objective_problems(recipe: Recipe, asked: Asked) -> Iterator[str]:
    """Yield a baseline that is compared with nothing."""
    yield from greedy_baseline(asked, "judge.relative", recipe.section(JudgeConfig).relative)


def _prompt_problems(judge: JudgeConfig) -> Iterator[str]:
    if judge.prompt == DEFAULT_PROMPT:
        return
    needed = ["{conversation}", *(["{form}"] if judge.in_lines else [])]
    if missing := [place for place in needed if place not in judge.prompt]:
        why = "" if missing[0] == "{conversation}" else ": it says how the reply to several questions ends"
        yield f"judge.prompt: must contain {missing[0]}{why}, got {judge.prompt[:200]!r}"


CONFLICTS = Conflicts(sections=section_problems, objective=objective_problems)
