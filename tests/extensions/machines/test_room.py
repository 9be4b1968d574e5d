"""Nodes without room for the weights of a run are named before anything of it starts."""

import pytest
import torch
from safetensors.torch import save_file

from asyncrl.errors import ConfigError
from asyncrl.extensions.machines.cluster import NodeCluster
from asyncrl.extensions.machines.room import needed_rooms
from asyncrl.extensions.machines.spread import ClusterOptions, Machine, spread
from asyncrl.types import MAIN_POLICY
from tests.extensions.machines.test_node_host import TOKEN, NodeThread
from tests.extensions.machines.test_spread import ALL, config, machines


@pytest.fixture
def model(tmp_path):
    """A folder with a model of 200,000 elements, 800,000 bytes in float32."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"w": torch.zeros(20, 10_000)}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return str(folder)


def needed(model, *nodes, **sections):
    found = config(**{"model": {"path": "m", "dtype": "float32"}, **sections})
    return needed_rooms(found, spread(found, Machine("head", 0, ALL), nodes), {MAIN_POLICY: model})


def test_the_engines_of_a_node_share_two_copies_of_the_weights(model):
    three = {"engine": {"weight_transfer": "http", "count": 3}}
    assert needed(model, *machines(0, 0), **three) == {"n1": 1_600_000, "n2": 1_600_000, "head": 0}
    assert needed("hub/name", *machines(0), **three) == {"n1": 0, "head": 0}
    assert needed(model, *machines(0), lora={"rank": 8}, engine={"weight_transfer": "http"})["n1"] == 0


def test_a_trainers_ranks_keep_checkpoints_in_memory_on_each_machine(model):
    # Master weights and two moments in float32 of both machines' halves, the newest and the one being written.
    train = {"nodes": 2, "ranks": 2, "memory_checkpoint_every": 1}
    found = needed(model, *machines(0, 0), train=train)
    assert found["head"] == 2 * 12 * 200_000
    assert found["n1"] == 2 * 12 * 200_000 and found["n2"] == 2 * 800_000


def test_a_node_says_what_room_it_has_and_one_with_too_little_is_refused(
    model, small_disk, tmp_path, monkeypatch
):
    monkeypatch.setenv("ASYNCRL_TOKEN", TOKEN)
    found = config(
        model={"path": "m", "dtype": "float32"},
        engine={"weight_transfer": "http", "weights_dir": str(small_disk)},
    )
    (tmp_path / "run").mkdir()
    with NodeCluster(ClusterOptions(1, "127.0.0.1"), found, tmp_path / "run") as cluster:
        node = NodeThread("small", tmp_path / "node", cluster.url)
        try:
            with pytest.raises(
                ConfigError,
                match=rf"engine\.weights_dir: node small has room for 0\.00 GiB in {small_disk}.* needs 0\.00 GiB",
            ):
                cluster.gather(model, {})
            (registered,) = cluster.registry.nodes()
            assert 0 < registered.room <= 2**20 and registered.weights_in == str(small_disk)
            assert node.node._running == {}
        finally:
            node.app.close()
