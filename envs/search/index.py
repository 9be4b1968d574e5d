"""BM25 over documents, by bm25s."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache

import bm25s

from asyncrl.envs.search.world import Document, make_world
from asyncrl.errors import ConfigError
from asyncrl.textfile import json_lines


class Index:
    """Finds documents by words of their titles and texts."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = list(documents)
        self.by_title = {d.title.casefold(): d for d in self.documents}
        texts = [f"{d.title} {d.text}" for d in self.documents]
        self._bm25 = bm25s.BM25()
        self._bm25.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)

    def search(self, query: str, count: int) -> list[Document]:
        """Return up to `count` documents that share a word with the query, best first."""
        words = bm25s.tokenize([query], stopwords="en", return_ids=False, show_progress=False)
        if not words[0]:
            return []
        count = min(count, len(self.documents))
        found, scores = self._bm25.retrieve(words, k=count, show_progress=False)
        return [self.documents[i] for i, score in zip(found[0], scores[0], strict=True) if score > 0]

    def open(self, title: str) -> Document | None:
        return self.by_title.get(title.strip().casefold())


def load_index(corpus: str, world: int, size: int) -> Index:
    """Return the index of the file `corpus`, or of an invented world if that is empty. Made once per process."""
    with _MAKING:
        return _index(corpus, world, size)


_MAKING = threading.Lock()


@lru_cache(maxsize=4)
def _index(corpus: str, world: int, size: int) -> Index:
    return Index(read_corpus(corpus) if corpus else make_world(world, size).documents)


def read_corpus(path: str) -> list[Document]:
    """Read JSON lines with `title` and `text`. Raises `ConfigError` or, for what is no JSON,
    `InputError`, naming the file and the invalid line."""
    documents = []
    for number, record in json_lines(path, "env.config.corpus"):
        try:
            documents.append(Document(str(record["title"]), str(record["text"])))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f"env.config.corpus: {path}, line {number}: must be an object with title and text ({error!r})"
            ) from error
    if not documents:
        raise ConfigError(f"env.config.corpus: {path}: holds no document")
    return documents
