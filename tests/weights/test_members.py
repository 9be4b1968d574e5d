"""Members of a population: engines find their files beside the newest version, also after a restart of the trainer."""

from functools import partial

import pytest
import torch

from asyncrl.errors import InputError
from asyncrl.extensions.league.rules.opponents import Population
from asyncrl.weights.files import read_weights, verify_weights
from asyncrl.weights.members import MEMBERS, Members, read_members
from asyncrl.weights.publish import FilePublisher

SERVED = partial(Population("uniform", every=2, size=2, self_play=0.0).served, max_staleness=0)


def publisher(weights, store):
    return FilePublisher(weights, [], members=Members(weights, store, SERVED))


def write(made, version, value=None):
    return made.write(version, [("w", torch.full((2,), float(version if value is None else value)))])


def held(weights):
    """The members by version, with what their files hold."""
    members = read_members(weights)
    for member in members:
        verify_weights(member)
    return {m.version: dict(read_weights(m.path))["w"][0].item() for m in members}


def test_each_version_is_written_with_the_members_that_its_groups_may_play(tmp_path):
    made = publisher(tmp_path / "weights", tmp_path / "store")
    seen = []
    for version in range(1, 9):
        write(made, version)
        seen.append(sorted(held(tmp_path / "weights")))
    # Every second version, the newest two and those of the version before; 0 is the base model and has no file.
    assert seen == [[], [], [2], [2], [2, 4], [2, 4], [2, 4, 6], [4, 6]]
    files = sorted(path.stem for path in (tmp_path / "weights").glob("*.safetensors"))
    # Those of the version before, which an engine that starts meanwhile reads, go with the next one.
    assert files == [f"weights-{version:08d}" for version in (2, 4, 6, 7, 8)]


def test_a_trainer_that_goes_back_forgets_the_members_of_what_did_not_happen(tmp_path):
    made = publisher(tmp_path / "weights", tmp_path / "store")
    for version in range(1, 8):
        write(made, version)
    made = publisher(tmp_path / "weights", tmp_path / "store")
    write(made, 4)
    assert held(tmp_path / "weights") == {2: 2.0}
    write(made, 5)
    write(made, 6, value=60.0)
    write(made, 7)
    assert held(tmp_path / "weights") == {2: 2.0, 4: 4.0, 6: 60.0}


def test_a_resumed_run_has_its_members_though_the_folder_of_weights_is_gone(tmp_path):
    made = publisher(tmp_path / "weights", tmp_path / "store")
    for version in range(1, 6):
        write(made, version)
    made = publisher(tmp_path / "new", tmp_path / "store")
    write(made, 5)
    assert held(tmp_path / "new") == {2: 2.0, 4: 4.0}


def test_a_damaged_record_is_named_and_a_run_without_a_population_has_none(tmp_path):
    assert read_members(tmp_path) is None
    (tmp_path / MEMBERS).write_text("[{}]")
    with pytest.raises(InputError, match=rf"{MEMBERS}: KeyError: 'version'"):
        read_members(tmp_path)


def test_a_version_that_becomes_a_member_when_the_next_one_is_written_is_kept_from_then_on(tmp_path):
    joined = []
    made = FilePublisher(
        tmp_path / "weights",
        [],
        members=Members(tmp_path / "weights", tmp_path / "store", lambda version: list(joined)),
    )
    for version in range(1, 4):
        write(made, version)
    assert held(tmp_path / "weights") == {}
    joined.append(3)
    for version in range(4, 8):
        write(made, version)
        assert held(tmp_path / "weights") == {3: 3.0}
