"""Data sets of a Hugging Face hub, or of any server that speaks its protocol (`HF_ENDPOINT`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncrl.config_sections import DataSource
from asyncrl.errors import ConfigError, InputError

if TYPE_CHECKING:
    import datasets


def read_hub(source: DataSource, split: str, key: str) -> datasets.Dataset:
    """Return a split of a data set of the hub, downloaded or from the cache.

    Raises `ConfigError` naming `key` for a name, configuration, split or revision that is not there, a hub that is not
    reached, or a data set that needs a token; `InputError` for files that cannot be read.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    from asyncrl.rows.source import _first_line, _quiet, _undecoded

    said = f"{source.path!r}" + (f" at revision {source.revision!r}" if source.revision else "")
    try:
        with _quiet():
            found = datasets.load_dataset(
                source.path, source.config or None, split=split, revision=source.revision or None
            )
        return _undecoded(found)
    except DatasetNotFoundError as error:
        raise ConfigError(
            f"{key}: there is neither a file {source.path!r} here nor a data set {said} on the hub that may be read; a "
            "private or gated one needs HF_TOKEN, of an account with access"
        ) from error
    except DatasetGenerationError as error:
        raise InputError(f"{key}: {said}: cannot be read: {_first_line(error)}") from error
    except ValueError as error:
        # The message lists the configurations or splits that there are.
        raise ConfigError(f"{key}: {said}: {' '.join(str(error).split())}") from error
    except Exception as error:
        # Of whichever HTTP library the hub's client uses.
        raise ConfigError(
            f"{key}: there is no file {source.path!r} here, and the data set {said} is neither in the cache nor to be "
            f"had from the hub: {_first_line(error)}"
        ) from error
