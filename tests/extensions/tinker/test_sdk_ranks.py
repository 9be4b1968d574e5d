"""Tinker's own SDK against a server of two ranks, of which one or the other is killed."""

import json

import psutil
import pytest
import torch

from tests.benchmark_env import benchmark_python
from tests.extensions.tinker.test_sdk import HERE, PACKAGES, Server
from tests.extensions.tinker.test_sdk_kills import last
from tests.waiting import START_S

pytestmark = pytest.mark.slow
KILLED_AT = {"gradient 1": 1, "both 2": 0, "gradient 3": 0, "both 4": 1}
"""By what the script has said, the rank that is killed then: between a gradient and its step, or while a step is taken
and answered."""


def kill_rank(server):
    """Kill the process of rank 1; return what the server's own exit code is then."""
    children = psutil.Process(server.process.pid).children()
    (rank,) = [one for one in children if "asyncrl.extensions.tinker.rank_process" in one.cmdline()]
    rank.kill()
    return server.process.wait(START_S)


@pytest.mark.timeout(3600)
def test_a_script_ends_with_the_weights_of_an_undisturbed_one_whichever_rank_was_killed(
    pytestconfig, tiny_model, tmp_path
):
    python = benchmark_python(pytestconfig.cache.mkdir("tinker"), PACKAGES, dependencies=False)
    words = (str(HERE / "sdk_steps.py"), "7", "3")
    server = Server(tmp_path, tiny_model, options=("--ranks", "2"))
    try:
        undisturbed = server.run(python, *words).split()[-1]
        script, seen = server.script(python, *words), []
        for line in script.stdout:
            seen.append(line.strip())
            killed = KILLED_AT.get(seen[-1])
            if killed is None:
                continue
            if killed == 0:
                server.kill()
            else:
                assert kill_rank(server) == 1
                assert "rank 1 has ended with exit code -9" in server.log()
            server.start()
        assert script.wait() == 0, server.errors()
        weights, wanted = last(server, seen[-1]), last(server, undisturbed)
    finally:
        server.stop()
    assert server.process.returncode == 0
    assert set(KILLED_AT) <= set(seen)
    assert weights.keys() == wanted.keys() and all(
        torch.equal(weights[name], wanted[name]) for name in weights
    )
    assert json.loads((server.folder / "state" / "config.json").read_text())["train"]["ranks"] == 2
