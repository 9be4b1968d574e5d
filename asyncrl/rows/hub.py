"""Data sets of a Hugging Face hub, or of any server that speaks its protocol (`HF_ENDPOINT`)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.cache import whole_file
from asyncrl.config_sections import DataSource
from asyncrl.errors import ConfigError, InputError

if TYPE_CHECKING:
    import datasets


def read_hub(source: DataSource, split: str, key: str) -> datasets.Dataset:
    """Return a split of a data set of the hub, or its first rows, downloaded or from the cache.

    Of first rows no more is downloaded than the files that hold them. Raises `ConfigError` naming `key` for a name,
    configuration, split or revision that is not there, a hub that is not reached, or a data set that needs a token;
    `InputError` for files that cannot be read.
    """
    import datasets
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError

    from asyncrl.rows.source import _first_line, _quiet, _undecoded

    name = f"{source.path!r}" + (f" at revision {source.revision!r}" if source.revision else "")
    try:
        with _quiet():
            if source.first:
                return _undecoded(_first_rows(source, split))
            found = datasets.load_dataset(
                source.path, source.config or None, split=split, revision=source.revision or None
            )
        return _undecoded(found)
    except DatasetNotFoundError as error:
        raise ConfigError(
            f"{key}: there is neither a file {source.path!r} here nor a data set {name} on the hub that may be read; a "
            "private or gated one needs HF_TOKEN, of an account with access"
        ) from error
    except DatasetGenerationError as error:
        raise InputError(f"{key}: {name}: cannot be read: {_first_line(error)}") from error
    except ValueError as error:
        # The message lists the configurations or splits that there are.
        raise ConfigError(f"{key}: {name}: {' '.join(str(error).split())}") from error
    except Exception as error:
        # Of whichever HTTP library the hub's client uses.
        raise ConfigError(
            f"{key}: there is no file {source.path!r} here, and the data set {name} is neither in the cache nor to be "
            f"had from the hub: {_first_line(error)}"
        ) from error


def _first_rows(source: DataSource, split: str) -> datasets.Dataset:
    """Return the first rows of a split, read as a stream and kept beside what else the cache has of the hub.

    What was kept last needs no hub, as a data set that was downloaded needs none.
    """
    import datasets
    from datasets.exceptions import DatasetNotFoundError

    asked = "\n".join((source.path, source.config, split, source.revision, str(source.first)))
    digest = hashlib.blake2b(asked.encode(), digest_size=12).hexdigest()
    folder = Path(datasets.config.HF_DATASETS_CACHE) / "asyncrl_first_rows" / digest
    try:
        builder = datasets.load_dataset_builder(
            source.path, source.config or None, revision=source.revision or None
        )
    except (DatasetNotFoundError, ValueError):
        raise
    except Exception:
        kept = sorted(folder.glob("*.arrow"), key=lambda path: path.stat().st_mtime)
        if not kept:
            raise
        return datasets.Dataset.from_file(str(kept[-1]))
    # Named by the commit.
    file = folder / f"{builder.hash}.arrow"
    if not file.exists():
        _keep_first(builder.as_streaming_dataset(split=split), source.first, file)
    return datasets.Dataset.from_file(str(file))


def _keep_first(stream: datasets.IterableDataset, number: int, file: Path) -> None:
    """Write the first rows of a stream to an Arrow file, which is complete or absent."""
    from datasets.arrow_writer import ArrowWriter
    from datasets.exceptions import DatasetGenerationError

    from asyncrl.rows.source import _undecoded

    stream = _undecoded(stream) if stream.features else stream
    try:
        with whole_file(file) as partial, ArrowWriter(path=str(partial), features=stream.features) as writer:
            for row in stream.take(number):
                writer.write(row)
            writer.finalize()
    except ValueError as error:
        # Of pyarrow and pandas, for files that are not what their names say.
        raise DatasetGenerationError(str(error)) from error
