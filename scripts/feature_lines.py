"""Counts the lines of the main path that name an optional feature: no file of the main path is to know one.

    python scripts/feature_lines.py [--lines]

The main path are the files of `docs/ways.md` that a task, a sampled token and a weight version pass, with the
checks across sections and the trainer's process. The count may only fall: `tests/test_feature_lines.py` holds it.
`--lines` shows the lines.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
WAYS = ("The way of a task", "The way of a sampled token", "The way of a weight version")
BESIDE = (
    "asyncrl/config_checks.py",
    "services/engine/retrying.py",
    "services/engine/router.py",
    "services/trainer/service.py",
)
"""Where every feature is checked, and made, and who hands on what engines sample."""
FEATURES = (
    # The trainer's.
    *(
        "poison",
        "swarm",
        "critical_path",
        "(?<!time)(?<!r)outer(?!most)",
        "(?<!_)exchange",
        "minimax",
        "exploit",
        "sft_phase",
        "commitment",
        "collapse",
        "(?<!vllm_)guard(?!s)",
    ),
    *(
        "replay_pool",
        "replay_groups",
        "success_pool",
        "complete_groups",
        "complete_from",
        "successes",
        "(?<!first_)completed",
        "external",
    ),
    *(
        "memory_checkpoint",
        "checkpoint_store",
        "router_replay",
        "routed",
        "experts",
        "old_policy",
        "interrupt",
    ),
    *("quantiz", "lora", "adapter", "tensor_parallel", "sequence_parallel", "offload", "muon", "adamw_8bit"),
    *("critic", "teacher", "snapshot", "ewma", "self_taught", "score_norms", "greedy", "role_baselines"),
    # The rollout's.
    *(
        "branch",
        "hint",
        "opponent",
        "population",
        "judge",
        "majority",
        "answer_ids",
        "with_answer",
        "next_states",
    ),
    *(
        "policies",
        "multi_policy",
        "further_polic",
        "images",
        "(?<!pro)vision",
        "agents",
        "gateway",
        "examples",
    ),
    # The buffer's.
    *("curriculum", "proposal", "turn_slack", "token_budget", "recycle", "replica", "automatic_admission"),
    # Engines, transports and machines.
    *(
        "speculat",
        r"(?<!asyncio\.)(?<!time\.)sleep",
        "keep_kv",
        "kv_offload",
        "batch_invariant",
        "pipeline_parallel",
        "carrier",
        r"(?<!\ba )(?<!\bno )(?<!\bone )(?<!\bfirst )collective(?!s\b|_rpc)",
    ),
    *("nixl", "(?<!time)delta", "fetch", "(?<!loss[ _])scale(?![ds])", "nodes", "machines", "evaluation"),
)
"""Parts of names and words as patterns, in small letters; several of one feature where its code uses several. A
`TimeoutError`, a pause, an over-provision, a router, torch's collectives and a loss's scale are of no feature."""
NAMES = re.compile("|".join(FEATURES))


def main_path(page: str) -> list[str]:
    """Return the files that the ways of the architecture's page go through, below no heading of their own."""
    found = set(BESIDE)
    for part in re.split(r"^(?=## )", page, flags=re.MULTILINE):
        if part.startswith(tuple(f"## {way}" for way in WAYS)):
            way = part.split("\n### ")[0]
            found |= set(re.findall(r"`((?:asyncrl|services)/[\w/]+\.py)", way))
    return sorted(found)


def feature_lines(text: str) -> list[tuple[int, str]]:
    """Return the numbers and texts of a file's lines that name a feature."""
    lines = enumerate(text.splitlines(), 1)
    return [(number, line) for number, line in lines if NAMES.search(line.lower())]


def counted() -> dict[str, tuple[int, int]]:
    """Return by file of the main path how many lines name a feature, and how many there are."""
    page = (ROOT / "docs" / "ways.md").read_text(encoding="utf-8")
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in main_path(page)}
    return {path: (len(feature_lines(text)), len(text.splitlines())) for path, text in texts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", action="store_true", help="show the lines")
    options = parser.parse_args()
    found = counted()
    for path, (naming, lines) in sorted(found.items(), key=lambda one: -one[1][0]):
        print(f"{naming:5} of {lines:5} ({naming / max(1, lines):4.0%})  {path}")
        for number, line in feature_lines((ROOT / path).read_text(encoding="utf-8")) if options.lines else ():
            print(f"           {number}: {line.strip()}")
    naming, lines = (sum(counts) for counts in zip(*found.values(), strict=True))
    print(f"{naming:5} of {lines:5} ({naming / lines:4.0%})  {len(found)} files")


if __name__ == "__main__":
    main()
