"""In what a model's forward passes follow the engine that sampled, and what is trained of it."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from asyncrl.train.models.policy import TrunkInput


class ForwardChange(Protocol):
    """One of an extension. The policy has it, and so have the copies of it."""

    follows_records: ClassVar[bool]
    """Whether it follows what that engine recorded of each token. Of tokens that are not rows of a step, such as those
    that another model sampled, there is nothing to follow."""

    def apply(self, model: Any, path: str, text_alone: bool) -> TrunkInput | None:
        """Change a causal LM of transformers before its first pass; return what its layers read then besides tokens.

        text_alone: whether it reads no images. Raises `ConfigError` where the model at `path` cannot be changed so.
        """
        ...
