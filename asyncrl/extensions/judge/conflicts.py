"""What a judge rules out."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Asked, Conflicts, Recipe, greedy_baseline, ruled_out
from asyncrl.extensions.judge.settings import (
    DEFAULT_PROMPT,
    ComponentConfig,
    JudgeConfig,
    JudgePlacement,
)


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield a judge beside an agent, and keys of `[judge]` that do not fit together."""
    judge = recipe.section(JudgeConfig)
    if judge.active and recipe.env.name == "agent":
        key, given = ("judge.url", judge.url) if judge.url else ("judge.kind", judge.kind)
        if not judge.served:
            key, given = "judge.components", str(sorted(judge.components))
        yield (
            f"{key} must be left out for env.name='agent', whose agent reports its own reward, got {given!r}"
        )
    yield from _unread(judge)
    yield from _gpu_problems(recipe, judge)
    yield from _folder_problems(recipe, judge)
    yield from _policy_problems(recipe, judge)
    if judge.relative != "off":
        yield from _relative_problems(recipe, judge)
    if judge.served and judge.chats:
        yield from _prompt_problems(judge)


def _unread(judge: JudgeConfig) -> Iterator[str]:
    """Yield what no judge of this kind would be asked."""
    asked = [
        ("components with a rubric", bool(judge.rubrics)),
        ("per_turn", judge.per_turn),
        ("samples", judge.samples > 1),
    ]
    for key, given in asked:
        if given and not judge.served:
            yield f"judge.url: must be given with judge.{key}, which a chat judge is asked for"
        elif given and not judge.chats:
            yield (
                f"judge.kind: must be 'chat' with judge.{key}, got {judge.kind!r}, whose server gives nothing but "
                "numbers"
            )
    if judge.outputs and (judge.chats or not judge.served):
        yield (
            "judge.kind: must be 'folder' or 'score' with judge.components with an output, which a reward model gives, "
            f"got {judge.kind!r}"
        )
    if judge.vote != "mean" and judge.samples == 1:
        yield f"judge.vote: is not read with judge.samples=1, got {judge.vote!r}"
    if judge.max_total_tokens and not (judge.served and judge.chats):
        yield (
            "judge.max_total_tokens: is not read without a chat judge, whose server reports tokens, got "
            f"{judge.max_total_tokens}"
        )
    if judge.max_requests and not judge.served:
        yield f"judge.max_requests: is not read without a judge.url, got {judge.max_requests}"
    if judge.served and judge.functions and not (judge.rubrics or judge.outputs or judge.per_turn):
        has = "a rubric where there is a judge.url" if judge.chats else "an output of the reward model"
        yield (
            f"judge.components: must have one with {has}: the score is the sum of components, and all of "
            f"{sorted(judge.functions)} are functions"
        )


def _gpu_problems(recipe: Recipe, judge: JudgeConfig) -> Iterator[str]:
    """Yield GPUs of processes that the run does not have."""
    for role, kind in (("reward_model", "folder"), ("judge_engine", "policy")):
        gpus = getattr(recipe.section(JudgePlacement), role)
        if gpus and judge.kind != kind:
            yield f"placement.{role} must be left out without judge.kind='{kind}', whose GPU it is, got {gpus}"


def _policy_problems(recipe: Recipe, judge: JudgeConfig) -> Iterator[str]:
    """Yield what a judge that is the policy itself needs, and what is not read beside it."""
    if judge.kind != "policy":
        return
    if judge.url:
        yield f"judge.url must be left out with judge.kind='policy', which the run serves itself, got {judge.url!r}"
    if recipe.eval.every and not judge.model:
        yield (
            "judge.model: must name the model that the run starts from with judge.kind='policy' and "
            f"eval.every={recipe.eval.every}: an evaluation knows the checkpoint alone, which is another version"
        )


def _folder_problems(recipe: Recipe, judge: JudgeConfig) -> Iterator[str]:
    """Yield what a reward model in a folder needs, and what is not read beside it."""
    if judge.kind != "folder":
        return
    if not judge.model:
        yield "judge.model: must be the folder of a reward model with judge.kind='folder', got ''"
    yield from ruled_out(
        "with judge.kind='folder'",
        ("judge.url", bool(judge.url), "left out", "the run serves the model itself"),
        ("judge.prompt", judge.prompt != DEFAULT_PROMPT, "left out", "the model reads conversations alone"),
        ("judge.max_requests", judge.max_requests > 0, "0", "the model is the run's own"),
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
        ("judge.url", not judge.served, "given", "a chat judge compares the episodes"),
        (
            "judge.kind",
            not judge.chats,
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
