"""The exit code of a role that a disk refused: the launcher does not start it again."""

import errno

import pytest

from asyncrl.cli import main
from asyncrl.commands.train import _resumable
from asyncrl.disk import DISK, FILE_SIZE, FILES, MEMORY
from asyncrl.errors import ConfigError, StopError, UnavailableError
from asyncrl.services.buffer import command


def refused(*_):
    raise RuntimeError("not saved") from OSError(errno.ENOSPC, "No space left on device", "step-000004")


def test_a_role_that_a_disk_refused_says_so_and_is_not_to_be_started_again(monkeypatch, capsys):
    monkeypatch.setattr(command, "start", refused)
    assert main(["serve", "buffer"]) == DISK.code
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "asyncrl: [Errno 28] No space left on device: 'step-000004'; a restart does not help until there is room"
    )


@pytest.mark.parametrize(
    ("error", "out"),
    [
        (OSError(errno.EROFS, "Read-only file system"), DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), DISK),
        (OSError(errno.EMFILE, "Too many open files"), FILES),
        (OSError(errno.ENFILE, "Too many open files in system"), FILES),
        (MemoryError(), MEMORY),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), MEMORY),
        (OSError(errno.EFBIG, "File too large"), FILE_SIZE),
        (ExceptionGroup("many", [ValueError("x"), OSError(errno.EMFILE, "Too many open files")]), FILES),
    ],
)
def test_what_a_role_ran_out_of_is_its_exit_code_though_its_log_takes_no_line(monkeypatch, error, out):
    def failing(*_):
        raise error

    class Full:
        def write(self, text):
            raise OSError(errno.ENOSPC, "No space left on device")

        flush = write

    monkeypatch.setattr(command, "start", failing)
    monkeypatch.setattr("sys.stderr", Full())
    assert main(["serve", "buffer"]) == out.code


def test_any_other_error_of_a_role_is_a_crash(monkeypatch):
    def broken(*_):
        raise OSError(errno.ENOENT, "No such file")

    monkeypatch.setattr(command, "start", broken)
    with pytest.raises(OSError, match="No such file"):
        main(["serve", "buffer"])


@pytest.mark.parametrize(
    ("error", "notes"),
    [
        (UnavailableError("trainer died"), ["resume the run: asyncrl train --resume {run}"]),
        (KeyboardInterrupt(), ["resume the run: asyncrl train --resume {run}"]),
        (ConfigError("train.x: wrong"), []),
    ],
)
def test_what_ends_a_run_says_how_to_go_on_with_it(tmp_path, error, notes):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(type(error)) as caught, _resumable(tmp_path):
        raise error
    assert getattr(caught.value, "__notes__", []) == [note.format(run=tmp_path) for note in notes]


def test_a_disk_that_the_launcher_cannot_write_to_ends_the_run_without_a_traceback(
    tmp_path, monkeypatch, capsys
):
    def run(args):
        with _resumable(tmp_path):
            refused()

    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("asyncrl.commands.train.run", run)
    assert main(["train", "x"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "asyncrl: [Errno 28] No space left on device: 'step-000004'",
        f"asyncrl: resume the run: asyncrl train --resume {tmp_path}",
    ]


def test_what_stops_a_run_is_said_once(tmp_path):
    with pytest.raises(StopError) as caught, _resumable(tmp_path):
        raise StopError("poison")
    assert not hasattr(caught.value, "__notes__"), "there is no run to resume yet"


@pytest.mark.parametrize(("configured", "tokens"), [([], 128), (["--recipe", "gridworld_grpo"], 256)])
def test_an_engine_alone_serves_a_model_with_the_models_own_context(
    monkeypatch, tmp_path, configured, tokens
):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 128}')
    served = []
    monkeypatch.setattr("asyncrl.services.engine.service.serve_engine", lambda *a: served.append(a[0]) or 0)
    assert main(["serve", "engine", "--model", str(tmp_path), *configured]) == 0
    assert served[0].max_model_len == tokens
