"""A version reaches every engine or is accounted for: all prepare before any commits, failures are set aside."""

import asyncio
import shutil

import pytest
import torch

from asyncrl.errors import InfrastructureError, InputError, UnavailableError
from asyncrl.extensions.weight_deltas.files import DELTA
from asyncrl.extensions.weight_deltas.transport import WithDeltas
from asyncrl.weights.files import read_weights, verify_weights, write_weights
from asyncrl.weights.position import read_committed, weight_file_from_json
from asyncrl.weights.publish import FilePublisher
from asyncrl.weights.transport import Transport


class Engine:
    """Records what it was asked; raises `errors[path]` where given."""

    epoch = 0

    def __init__(self, url, calls, **errors):
        self.url, self.calls, self.errors = url, calls, errors

    async def request(self, path, body=None, timeout_s=60.0):
        if path == "weights/epoch":
            return {"epoch": self.epoch}
        verb = path.removeprefix("weights/")
        await asyncio.sleep(0)
        self.calls.append((self.url, verb, body["version"]))
        if verb in self.errors:
            raise self.errors[verb]
        return {"pause_s": 0.5} if verb == "commit" else {"verify_s": 0.1}


def publish(publisher, version):
    file = publisher.write(version, [("w", torch.full((2,), float(version)))])
    return asyncio.run(publisher.publish(file))


def test_every_engine_prepares_before_any_commits(tmp_path):
    calls = []
    report = publish(FilePublisher(tmp_path, [Engine("a", calls), Engine("b", calls)]), 1)
    assert calls == [("a", "prepare", 1), ("b", "prepare", 1), ("a", "commit", 1), ("b", "commit", 1)]
    assert (report.version, report.pause_s, report.failed) == (1, [0.5, 0.5], {})
    assert report.num_bytes > 0


@pytest.mark.parametrize("phase", ["prepare", "commit"])
def test_an_engine_that_fails_a_phase_is_quarantined_until_it_has_caught_up(tmp_path, phase):
    calls = []
    bad = Engine("bad", calls, **{phase: InfrastructureError("gone")})
    publisher = FilePublisher(tmp_path, [Engine("good", calls), bad])
    report = publish(publisher, 1)
    assert report.failed == {"bad": f"weights/{phase}: gone"} == publisher.quarantined
    assert (("bad", "commit", 1) in calls) == (phase == "commit")
    assert report.pause_s == [0.5]
    bad.errors.clear()
    assert publish(publisher, 2).failed == {}
    assert publisher.quarantined == {}


def test_a_version_that_no_engine_took_is_an_error_with_every_reason(tmp_path):
    engines = [
        Engine("a", [], prepare=InputError("checksum")),
        Engine("b", [], commit=InfrastructureError("gone")),
    ]
    with pytest.raises(
        UnavailableError, match=r"version 3 was committed by no engine: a: .*checksum; b: .*gone"
    ):
        publish(FilePublisher(tmp_path, engines), 3)


def test_a_bug_is_not_taken_for_a_failed_engine(tmp_path):
    with pytest.raises(AttributeError):
        publish(FilePublisher(tmp_path, [Engine("a", [], prepare=AttributeError("bug"))]), 1)


def test_the_file_before_the_newest_stays_for_engines_that_still_read_it(tmp_path):
    publisher = FilePublisher(tmp_path, [Engine("a", [])])
    for version in (1, 2, 3):
        publish(publisher, version)
    assert sorted(p.name for p in tmp_path.glob("weights-*")) == [
        "weights-00000002.safetensors",
        "weights-00000003.safetensors",
    ]


def test_an_engine_that_was_away_gets_the_newest_version_as_soon_as_it_is_back(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncrl.weights.publish.RETRY_S", 0.01)
    calls = []
    bad = Engine("bad", calls, prepare=InfrastructureError("gone"))
    publisher = FilePublisher(tmp_path, [Engine("good", calls), bad])

    async def scenario():
        await publisher.publish(publisher.write(1, [("w", torch.ones(2))]))
        assert list(publisher.quarantined) == ["bad"]
        bad.errors.clear()
        async with asyncio.timeout(10):
            while publisher.quarantined:
                await asyncio.sleep(0.01)
        await publisher.close()

    asyncio.run(scenario())
    assert ("bad", "commit", 1) in calls


def test_a_publish_waits_for_an_engine_that_restarts(tmp_path, monkeypatch):
    monkeypatch.setattr("asyncrl.weights.publish.RETRY_S", 0.01)
    calls = []
    engine = Engine("a", calls, prepare=InfrastructureError("restarts"))
    publisher = FilePublisher(tmp_path, [engine], wait_s=10.0)

    async def scenario():
        call = asyncio.ensure_future(publisher.publish(publisher.write(1, [("w", torch.ones(2))])))
        await asyncio.sleep(0.05)
        assert not call.done()
        engine.errors.clear()
        return await call

    assert asyncio.run(scenario()).failed == {}
    assert calls[-1] == ("a", "commit", 1)


def test_a_damaged_file_is_written_again_and_every_engine_asked_again(tmp_path):
    class Reader(Engine):
        """Verifies files as an engine does."""

        async def request(self, path, body=None, timeout_s=60.0):
            if body:
                verify_weights(weight_file_from_json(body))
            return await super().request(path, body, timeout_s)

    calls = []
    publisher = FilePublisher(tmp_path, [Reader("a", calls), Reader("b", calls)])
    file = publisher.write(1, [("w", torch.arange(3.0))])
    path = tmp_path / "weights-00000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    report = asyncio.run(publisher.publish(file))
    assert report.failed == {}
    assert [call for call in calls if call[1] == "commit"] == [("a", "commit", 1), ("b", "commit", 1)]
    assert torch.equal(dict(read_weights(path))["w"], torch.arange(3.0))


def test_each_life_of_a_trainer_has_an_epoch_of_its_own_and_may_go_back(tmp_path):
    publish(FilePublisher(tmp_path, [Engine("a", [])]), 5)
    calls = []
    second = FilePublisher(tmp_path, [Engine("a", calls, commit=InfrastructureError("gone"))])
    assert second.epoch == 2
    with pytest.raises(UnavailableError):
        publish(second, 4)
    committed = read_committed(tmp_path)
    assert (committed.version, committed.epoch) == (4, 2)


def test_a_trainer_whose_folder_was_lost_goes_on_after_what_its_engines_have_loaded(tmp_path):
    loaded = Engine("a", [])
    loaded.epoch = 3
    publisher = FilePublisher(tmp_path, [loaded, Engine("b", [])])
    publish(publisher, 5)
    committed = read_committed(tmp_path)
    assert (committed.version, committed.epoch, publisher.epoch) == (5, 4, 4)
    loaded.epoch = 9
    publish(publisher, 6)
    assert read_committed(tmp_path).epoch == 4


def test_a_disk_without_room_is_named(tmp_path):
    target = tmp_path / "weights"
    target.write_text("a file where a folder should be")
    with pytest.raises(UnavailableError, match=r"weights of version 1: .* cannot be written"):
        write_weights(target, 1, [("w", torch.ones(2))])


def test_a_version_after_a_committed_one_has_a_delta_to_it_if_that_is_smaller(tmp_path):
    publisher = FilePublisher(tmp_path, [Engine("a", [])], transport=WithDeltas(Transport()))
    weights = torch.randn(10_000)
    files = []
    for version in (1, 2, 3, 5):
        weights[version] += 1.0
        files.append(publisher.write(version, [("w", weights if version != 3 else torch.randn(10_000))]))
        asyncio.run(publisher.publish(files[-1]))
    assert [dict(file.forms) for file in files] == [{}, {DELTA: files[1].forms[DELTA]}, {}, {}]
    assert files[1].forms[DELTA].base_checksum == files[0].checksum
    assert weight_file_from_json(files[1].to_json()) == files[1]
    assert read_committed(tmp_path).forms == {}


def test_an_engine_may_take_as_long_as_its_longest_turn_to_finish_it_before_it_commits(tmp_path):
    """With `schedule="asynchronous"` an answer of 32,000 tokens takes minutes."""

    class Finishing(Engine):
        async def request(self, path, body=None, timeout_s=60.0):
            limits[path] = timeout_s
            return await super().request(path, body, timeout_s)

    limits = {}
    publish(FilePublisher(tmp_path / "a", [Finishing("a", [])], 60.0, finish_requests=True, turn_s=600.0), 1)
    assert limits["weights/prepare"] == pytest.approx(60, abs=1)
    assert limits["weights/commit"] == pytest.approx(660, abs=1)
    publish(FilePublisher(tmp_path / "b", [Finishing("a", [])], 60.0, finish_requests=False, turn_s=600.0), 1)
    assert limits["weights/commit"] == pytest.approx(60, abs=1)


def kept(folder):
    return sorted(int(path.stem.removeprefix("weights-")) for path in folder.glob("weights-*.safetensors"))


@pytest.mark.parametrize(
    ("earlier", "there"), [(0, [5, 6]), (1, [5, 6]), (2, [4, 5, 6]), (4, [2, 3, 4, 5, 6])]
)
def test_as_many_earlier_versions_stay_as_are_read_again(tmp_path, earlier, there):
    publisher = FilePublisher(tmp_path, [Engine("a", [])], earlier=earlier)
    for version in range(1, 7):
        publish(publisher, version)
    assert kept(tmp_path) == there


def test_earlier_versions_go_the_oldest_first_where_they_take_much_of_what_is_free(tmp_path, monkeypatch):
    publisher = FilePublisher(tmp_path, [Engine("a", [])], earlier=4)
    for version in range(1, 5):
        publish(publisher, version)
    size = (tmp_path / "weights-00000001.safetensors").stat().st_size
    room = shutil.disk_usage(tmp_path)._replace(free=8 * 2 * size)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    publish(publisher, 5)
    # The one before stays at any size, and two more take an eighth.
    assert kept(tmp_path) == [2, 3, 4, 5]
    room = room._replace(free=8 * size - 1)
    publish(publisher, 6)
    assert kept(tmp_path) == [5, 6]
