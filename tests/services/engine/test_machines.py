"""What vLLM is told of an engine whose ranks are on several machines."""

import itertools

from asyncrl.credentials import read_credentials
from asyncrl.services.engine.machines import MachineShare
from asyncrl.services.engine.service import EngineOptions, build_command, build_env

CREDENTIALS = read_credentials("the-token-of-this-run")


def options(number, **more):
    return EngineOptions("m", machine=MachineShare(2, number, "127.0.0.1", 29000), tensor_parallel=4, **more)


def pairs(command):
    return dict(itertools.pairwise(command))


def test_all_machines_of_an_engine_are_told_the_same_and_which_of_them_they_are():
    server, other = (build_command(options(number), 8000) for number in (0, 1))
    assert server[2] == "asyncrl.weights.vllm_api_server"
    assert other[2] == "asyncrl.weights.vllm_follower"
    for number, command in enumerate((server, other)):
        told = pairs(command)
        assert (told["--nnodes"], told["--node-rank"]) == ("2", str(number))
        assert (told["--master-addr"], told["--master-port"]) == ("127.0.0.1", "29000")
        assert (told["--tensor-parallel-size"], told["--distributed-executor-backend"]) == ("4", "mp")
        assert ("--headless" in command) is (number == 1)
    where = ("--headless", "--node-rank", "0", "1", "asyncrl.weights.vllm_follower", server[2])
    assert [w for w in server if w not in where] == [w for w in other if w not in where]


def test_its_processes_meet_on_the_network_to_the_first_machine():
    env = build_env(options(1, pipeline_parallel=2), CREDENTIALS, base={})
    assert env["VLLM_HOST_IP"] == "127.0.0.1"
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("lo", "lo")
    named = build_env(options(1), CREDENTIALS, base={"NCCL_SOCKET_IFNAME": "ib0"})
    assert (named["GLOO_SOCKET_IFNAME"], named["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")
    # Four times two ranks, on two machines.
    assert env["ASYNCRL_ENGINE_RANKS_HERE"] == "4"
    alone = build_env(EngineOptions("m"), CREDENTIALS, base={})
    assert not [name for name in alone if "_IFNAME" in name or name.startswith("ASYNCRL_ENGINE_MACHINE")]
    assert "--nnodes" not in build_command(EngineOptions("m"), 8000)
