"""What offloading the optimizer, or parameters, asks for."""

from __future__ import annotations

from collections.abc import Iterator

from asyncrl.conflicts.protocol import Conflicts, Recipe


def section_problems(recipe: Recipe) -> Iterator[str]:
    """Yield how the optimizer cannot be offloaded."""
    if recipe.train.offload != "none" and recipe.train.zero_stage != 3:
        yield (
            "train.zero_stage must be 3 where train.offload is not 'none': below it DeepSpeed keeps the gradients it "
            f"offloads in the weights' own type, got {recipe.train.zero_stage}"
        )
    if recipe.train.offload != "none" and recipe.train.optimizer == "adamw_8bit":
        yield (
            "train.optimizer must be 'adamw' or 'muon' where train.offload is not 'none': states of 8 bits are for the "
            "GPU, got 'adamw_8bit'"
        )
    if recipe.train.offload_folder and recipe.train.offload == "none":
        yield (
            "train.offload must be 'optimizer' or 'parameters' where train.offload_folder says in whose files, got "
            "'none'"
        )


CONFLICTS = Conflicts(sections=section_problems)
