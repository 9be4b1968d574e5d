"""A server has the hooks of what it was asked for, and a policy the routes of these."""

import asyncio

import pytest

from asyncrl.errors import InputError
from asyncrl.extensions.lora.engine import LORA, POLICIES
from asyncrl.extensions.old_policy.vllm_sampled import KEEP_SAMPLED
from asyncrl.weights.vllm_addresses import Address, Addresses, address_of
from asyncrl.weights.vllm_configured import CAPABILITIES, hooks_of, served_from_environment
from asyncrl.weights.vllm_hooks import EngineHook, having
from asyncrl.weights.vllm_plugin import MACHINES, WEIGHTS_DIR
from asyncrl.weights.vllm_served import Served

CORE = {
    "weights/epoch",
    "weights/base",
    "weights/adopt",
    "weights/expect",
    "weights/prepare",
    "weights/commit",
}
TRANSPORTS = {"weights/join", "weights/receive", "weights/fetch", "weights/fetched", "weights/read"}


def served(tmp_path, env):
    return Served("main", str(tmp_path), asyncio.Lock(), hooks_of(env))


def test_a_policy_without_hooks_has_the_routes_of_every_engine_alone(tmp_path):
    assert set(Served("main", str(tmp_path), asyncio.Lock()).routes) == CORE


def test_transports_are_always_there_since_the_trainer_chooses_among_them(tmp_path):
    assert set(served(tmp_path, {}).routes) == CORE | TRANSPORTS


def test_an_engine_that_keeps_no_sequences_has_no_route_to_be_interrupted_for_them(tmp_path):
    asked = served(tmp_path, {KEEP_SAMPLED: "1"})
    assert set(asked.routes) == CORE | TRANSPORTS | {"weights/interrupt"}


@pytest.mark.parametrize(
    ("asked", "hook"),
    [
        ({MACHINES: "2"}, "OtherMachines"),
        ({"ASYNCRL_RECORD_STATES": "1"}, "CommittedStates"),
        ({"ASYNCRL_RECORD_EXPERTS": "1"}, "RecordedExperts"),
        ({KEEP_SAMPLED: "1"}, "Interruptions"),
    ],
)
def test_a_flag_of_the_engine_brings_its_hook_and_no_other(tmp_path, asked, hook):
    def names(env):
        return [type(one).__name__ for one in served(tmp_path, env).hooks]

    assert set(names(asked)) - set(names({})) == {hook}


def test_every_hook_of_the_table_has_a_say_in_something():
    methods = [name for name in vars(EngineHook) if not name.startswith("__")]
    for one in CAPABILITIES:
        hook = one.load()
        assert issubclass(hook, EngineHook)
        assert any(getattr(hook, name) is not getattr(EngineHook, name) for name in methods), one.path


def test_only_hooks_that_override_a_method_are_called_for_it(tmp_path):
    hooks = served(tmp_path, {}).hooks
    assert [type(one).__name__ for one in having(hooks, "read")] == ["Images", "Speculation"]
    assert having(hooks, "hold") == []


def test_a_path_names_a_policy_and_what_is_asked_of_it():
    assert address_of("/asyncrl/v1/weights/commit") == Address("main", "weights/commit")
    assert address_of("/policies/red/asyncrl/v1/generate") == Address("red", "generate")
    assert address_of("/v1/completions") is None


def test_every_policy_of_an_engine_has_adapters_of_its_own_and_a_folder_below_the_runs(tmp_path):
    env = {
        WEIGHTS_DIR: str(tmp_path),
        LORA: '{"rank": 2}',
        POLICIES: '{"red": {"rank": 4}}',
    }
    addresses = served_from_environment(env)
    own, red = (addresses.policy(Address(name, "state")) for name in ("main", "red"))
    assert (own.loader.lora.rank, red.loader.lora.rank) == (2, 4)
    assert red.folder == str(tmp_path / "policy-red")
    assert (own.own("7"), red.own("7")) == ("7", "red/7")
    with pytest.raises(InputError, match=r"policy 'blue': this engine serves \['main', 'red'\]"):
        addresses.policy(Address("blue", "state"))


def test_what_whoever_fetches_weights_may_call_is_told_from_other_routes(tmp_path):
    addresses = Addresses({"main": served(tmp_path, {})})
    assert addresses.is_raw(Address("main", "weights/bytes/1/2/whole"))
    assert not addresses.is_raw(Address("main", "weights/prepare"))
    assert addresses.vllm_paths == {"/sleep", "/wake_up", "/is_sleeping"}
