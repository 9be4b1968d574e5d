"""Shared fixtures: a tiny model made in a second, and one real vLLM server for the whole test session."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

from asyncrl.chat import renderer
from asyncrl.gpus import on_cpu
from asyncrl.process_start import FORK_SERVER
from asyncrl.scratch import scratch_folder
from scripts.testing.fork_server import start_fork_server
from tests.credentials import TOKEN
from tests.distribution import LongestFirst, longest_first
from tests.shared import SHARED, shared_folder
from tests.tiers import at_length, changed_since

assert TOKEN  # All services and clients of the tests find it in the environment.

# Many containers set it: without stored bytecode each of hundreds of processes would compile the whole package anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The jobs that a shell runs in the background ignore Ctrl-C, and so would the runs that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A command that a test calls in this process would leave transformers without torch for all later tests.
renderer.import_tokenizers_only = lambda: None

# Every run tries the same examples and none is timed; `--hypothesis-profile explore` tries new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        # What this process and those that share the tests with it make once for all.
        config.held = contextlib.ExitStack()
        os.environ[SHARED] = str(config.held.enter_context(scratch_folder("tests")))
        # Else a vLLM that is none of our engines leaves its sockets beside it.
        os.environ.setdefault("VLLM_RPC_BASE_PATH", os.environ[SHARED])
        # On GPUs each process must find its own devices when it imports torch.
        forks = on_cpu() and FORK_SERVER not in os.environ
        config.fork_server = start_fork_server(shared_folder()) if forks else None


def pytest_unconfigure(config):
    if not hasattr(config, "workerinput"):
        if config.fork_server is not None:
            config.fork_server.kill()
            config.fork_server.wait()
            del os.environ[FORK_SERVER]
        del os.environ[SHARED]
        config.held.close()


# Else libraries would call what is frozen leaked; not earlier, for pytest's last collections would look through it.
atexit.register(gc.unfreeze)


def pytest_sessionstart():
    # What is collected stays, and so do the modules it imports.
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    # The same of libraries that a test has imported: DeepSpeed collects garbage dozens of times.
    if len(sys.modules) > _Imported.modules + 50:
        _Imported.modules = len(sys.modules)
        gc.collect()
        gc.freeze()


class _Imported:
    modules = 0
    """How many modules there were when memory was frozen last."""


def pytest_addoption(parser):
    parser.addoption(
        "--changed", metavar="COMMIT", help="tests at length whose code differs from it count as core"
    )


# Before pytest chooses by `-m`.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    commit = config.getoption("--changed")
    changed = changed_since(commit) if commit else ()
    for item in items:
        if at_length(item, changed):
            item.add_marker("at_length")
    if hasattr(config, "workerinput"):
        longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    config.option.loadscopereorder = False
    return LongestFirst(config, log)


CORPUS = [
    "goal north east",
    "goal south west",
    "north",
    "south",
    "east",
    "west",
    "say 7",
    "6 * 8",
    "user",
    "assistant",
]
CONTEXT = 256


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a randomly initialised model and its tokenizer."""
    from asyncrl.train.models.tiny_model import build_model, build_tokenizer, save

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = build_tokenizer(CORPUS * 20, 400, CONTEXT)
    save(folder, build_model(len(tokenizer), 64, 2, 2, CONTEXT, tokenizer.eos_token_id, seed=0), tokenizer)
    return str(folder)


@pytest.fixture(scope="session")
def renderer(tiny_model):
    from asyncrl.chat.renderer import load_renderer

    return load_renderer(tiny_model)


@pytest.fixture(scope="session")
def two_ranks(tmp_path_factory):
    """Two ranks; see `tests.ranks`."""
    from tests.ranks import TwoRanks

    ranks = TwoRanks(tmp_path_factory.mktemp("two-ranks"))
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def engine_weights(tmp_path_factory):
    """The folder from which the session's engine takes weights."""
    return tmp_path_factory.mktemp("engine-weights")


@pytest.fixture(scope="session")
def engine_url(tiny_model, engine_weights, tmp_path_factory):
    """The address of a real vLLM server that serves `tiny_model` as version 0, and keeps what each version samples."""
    from tests.engines import serving

    keeps = {"algo": {"proximal": {"name": "snapshot"}}, "train": {"old_policy": "interrupt"}}
    with serving(tmp_path_factory.mktemp("engine"), tiny_model, engine_weights, **keeps) as engine:
        yield engine.url


@pytest.fixture
def workplace(tmp_path):
    """A folder with the recipe of a small run; what `tests.runs` started ends with the test."""
    from tests.runs import RECIPE, end_started

    (tmp_path / "recipe.toml").write_text(RECIPE)
    yield tmp_path
    end_started()


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 1 MiB; skips where mounting is not allowed."""
    import subprocess

    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)
