"""The texts of single tokens, from the tokenizer that lies beside a run's checkpoints. Loads no transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from asyncrl.run.runs import read_config

FILE = "tokenizer.json"


class TokenTexts:
    """Decodes the tokens of one run. Without a tokenizer on this machine a token's text is its id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer: Tokenizer | None = None

    def with_texts(self, episode: Mapping[str, Any]) -> dict[str, Any]:
        """Return an episode of `EpisodeTable` with the texts of its tokens, and of the times it was played again."""
        replays = [self.with_texts(one) for one in episode.get("replays", ())]
        return {**episode, "replays": replays, "texts": self.texts(episode["token_ids"] or [])}

    def texts(self, token_ids: Sequence[int]) -> list[str]:
        """Return each token's text. Bytes that are no whole character show as U+FFFD."""
        if self._tokenizer is None:
            self._tokenizer = self._load()
        if self._tokenizer is None:
            return [f"⟨{token}⟩" for token in token_ids]
        return self._tokenizer.decode_batch([[token] for token in token_ids], skip_special_tokens=False)

    def _load(self) -> Tokenizer | None:
        model = str(read_config(self._folder)["model"].get("path", ""))
        run = self._folder.parent.parent if self._folder.parent.name == "policies" else self._folder
        places = sorted(self._folder.glob(f"checkpoints/*/{FILE}"), reverse=True)
        places += [Path(model) / FILE] if model else []
        places += sorted(run.glob(f"checkpoints/*/{FILE}"), reverse=True)
        for path in places:
            if path.is_file():
                return Tokenizer.from_file(str(path))
        return None
