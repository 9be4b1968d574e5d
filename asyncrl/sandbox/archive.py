"""Files as a tar archive, which is how they go into a sandbox."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping


def archive(files: Mapping[str, bytes], executable: frozenset[str] = frozenset()) -> bytes:
    """Return the files as a tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            info.mode = 0o755 if name in executable or name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()
