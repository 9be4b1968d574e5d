"""The setting of a store of checkpoints, a key of `[train]`."""

from __future__ import annotations

from typing import Annotated

from pydantic import field_validator

from asyncrl.config_sections import PATH, Section, Seldom


class StoreConfig(Section):
    """A key of `[train]`."""

    checkpoint_store: Seldom[Annotated[str, PATH]] = ""
    """A URL that fsspec opens, such as "s3://bucket/run", which gets each checkpoint, too: a run whose folder has lost
    its own resumes from there. Stores other than mounted disks need their package, s3fs for S3."""

    @field_validator("checkpoint_store")
    @classmethod
    def _opens(cls, value: str) -> str:
        if value:
            kind, found, _ = value.partition("://")
            if not found:
                raise ValueError("must be a URL such as s3://bucket/run or file:///mnt/run")
            from fsspec import get_filesystem_class

            try:
                get_filesystem_class(kind)
            except ImportError as error:
                raise ValueError(str(error)) from error
        return value
