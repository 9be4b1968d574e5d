"""The encoded groups that are ready or taken: small ones in the ledger, large ones in files that it names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from asyncrl.buffer.body_files import LARGE_BYTES, BodyFiles, FileBody
from asyncrl.buffer.integrity import body_checksum
from asyncrl.buffer.store import Store

Stored = bytes | FileBody
"""A small body, or where a large one is."""


class Bodies:
    """The rows of `bodies`. `keep` and `delete` run inside a transaction of their caller.

    files: None keeps all bodies in the ledger, as one in memory must.
    """

    def __init__(self, store: Store, files: BodyFiles | None) -> None:
        self.store = store
        self.files = files
        if files is not None:
            named = store.rows("SELECT file, size, checksum FROM bodies WHERE file IS NOT NULL")
            files.sweep([FileBody(*row) for row in named])

    def stage(self, body: bytes, claimed: int | None = None) -> FileBody | None:
        """Write a large body to its file, ahead of `keep`; None for a small one. For any thread.

        The file is `keep`'s to free once it has been called; before, it is the caller's, by `discard`.
        claimed: the file that holds it already, see `claim`.
        """
        if self.files is None or (len(body) < LARGE_BYTES and claimed is None):
            return None
        return self.files.write(body, claimed)

    def claim(self, holder: str, file: int, size: int) -> bytes | None:
        """See `BodyFiles.claim`; None without files. For any thread."""
        return None if self.files is None else self.files.claim(holder, file, size)

    def discard(self, staged: FileBody) -> None:
        """Free the file of a body that was never kept."""
        if self.files is not None and not staged.kept:
            self.files.free([staged.file])

    def keep(self, seq: int, body: bytes, staged: FileBody | None = None) -> None:
        """Add the body of a task's group. staged: where it has been written already."""
        staged = staged or self.stage(body)
        if staged is None:
            self.store.execute(
                "INSERT OR REPLACE INTO bodies (seq, body, checksum) VALUES (?, ?, ?)",
                (seq, body, body_checksum(body)),
            )
            return
        assert self.files is not None
        staged.kept = True
        self.store.when_undone(partial(self.files.free, [staged.file]))
        self.store.execute(
            "INSERT INTO bodies (seq, body, file, size, checksum) VALUES (?, x'', ?, ?, ?)",
            (seq, staged.file, staged.size, staged.checksum),
        )

    def delete(self, where: str = "1", values: Sequence[Any] = ()) -> None:
        """Delete the bodies that a condition selects; their files are free once that is committed."""
        deleted = self.store.execute(f"DELETE FROM bodies WHERE {where} RETURNING file", values).fetchall()
        files = [file for (file,) in deleted if file is not None]
        if files and self.files is not None:
            self.store.when_committed(partial(self.files.free, files))

    def find(self, seq: int) -> Stored:
        body, file, size, checksum = self.store.row(
            "SELECT body, file, size, checksum FROM bodies WHERE seq = ?", seq
        )
        return body if file is None else FileBody(file, size, checksum)

    def read(self, stored: Stored) -> bytes | None:
        """Return the bytes of a body, None where its file has lost them. For any thread."""
        if not isinstance(stored, FileBody):
            return stored
        assert self.files is not None
        return self.files.read(stored)

    def shared(self) -> tuple[str, str]:
        """Return the folder of the files and its proof (`BodyFiles.prove`), "" without files."""
        if self.files is None:
            return "", ""
        return str(self.files.folder.absolute()), self.files.prove()

    def close(self) -> None:
        if self.files is not None:
            self.files.remove_free()
