"""Sessions in an image: what they see and cannot do."""

import asyncio
import os

import pytest

from asyncrl.errors import ConfigError
from asyncrl.extensions.sandbox_images.dockerfile import Context, parse
from asyncrl.extensions.sandbox_images.store import image
from asyncrl.sandbox.backends import BACKENDS, backend_class, open_sandbox
from asyncrl.sandbox.jail.client import LauncherClient
from asyncrl.sandbox.protocol import Mount, RootFiles, SandboxSpec

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="this machine's programs are a base for root alone")

RECIPE = (
    "FROM x\nWORKDIR /app\nRUN cp /usr/bin/id /usr/local/bin/whoami-root && chmod u+s /usr/local/bin/whoami-root && "
    "echo kept > /etc/kept && mkdir -m 777 /srv/open && mkdir -m 700 /srv/closed && echo x > /srv/closed/x"
)


def in_image(monkeypatch, tmp_path, commands, **spec):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))

    async def whole():
        try:
            built = await image(parse(RECIPE, Context({})))
            made = SandboxSpec("bash", root=built.root, env=dict(built.env), **spec)
            async with await open_sandbox("bubblewrap", made) as box:
                return [(await box.exec(["bash", "-c", command])) for command in commands]
        finally:
            await LauncherClient.close_shared()

    return asyncio.run(whole())


def test_a_session_reads_the_image_and_writes_its_own_folders_alone(monkeypatch, tmp_path):
    writes = [
        f"touch {place}/new" for place in ("/etc", "/srv/open", "/usr/local", "/var/tmp", "/opt", "/", "/dev")
    ]
    read, own, *refused = in_image(
        monkeypatch, tmp_path, ["cat /etc/kept", "touch /app/a /tmp/b /dev/shm/c && ls /work", *writes]
    )
    assert (read.text, own.text) == ("kept\n", "a\n")
    assert [result.ok for result in refused] == [False] * len(writes)


def test_a_program_that_belongs_to_root_gives_no_rights(monkeypatch, tmp_path):
    user, closed, trial = in_image(
        monkeypatch, tmp_path, ["whoami-root", "cat /srv/closed/x", "unshare -m true; mount -t tmpfs x /tmp"]
    )
    assert "uid=1000" in user.text and "euid=0" not in user.text
    assert not closed.ok and not trial.ok


def test_a_session_sees_nothing_of_this_machine_but_the_image(monkeypatch, tmp_path):
    (tmp_path / "secret").write_text("secret")
    texts = in_image(
        monkeypatch,
        tmp_path,
        [f"cat {tmp_path}/secret; ls -A /root /home; cat /etc/shadow; ls /sys", "cat /proc/net/dev"],
    )
    assert texts[0].text.split() == ["/home:", "/root:"]
    assert len(texts[1].text.splitlines()) == 3


def test_files_and_folders_can_be_mounted_into_an_image(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("a file\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "inner").write_text("inner\n")
    mounts = (Mount(str(tmp_path / "file"), "/opt/harness/file"), Mount(str(tmp_path / "folder"), "/data"))
    read, write = in_image(
        monkeypatch,
        tmp_path,
        ["cat /opt/harness/file /data/inner", "touch /opt/harness/x || touch /data/x"],
        mounts=mounts,
    )
    assert (read.text, write.ok) == ("a file\ninner\n", False)


@pytest.mark.parametrize("name", [name for name in BACKENDS if name != "bubblewrap"])
def test_other_backends_refuse_a_root_file_system(name):
    async def start():
        box = backend_class(name)()
        try:
            await box.start(SandboxSpec("bash", root=RootFiles((("/", ("/a", "/b")),), "/app")))
        finally:
            await box.stop()
            await LauncherClient.close_shared()

    with pytest.raises(ConfigError, match="takes no root file system; backends that do: bubblewrap"):
        asyncio.run(start())
