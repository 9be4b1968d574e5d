"""Every command and every code block of the pages works for a reader who has only the installed package.

A page's blocks run in order in one folder of the page's own, which is empty at first.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import signal
import subprocess
import textwrap
import time
import tomllib
import urllib.request
from pathlib import Path

import pytest

from asyncrl import __version__
from asyncrl.process_start import FORK_SERVER
from tests.distribution import TUTORIAL
from tests.docs.blocks import LANGUAGES, ROOT, Block, blocks, pages, spans
from tests.docs.installed import Installed, install
from tests.scripts import help_of
from tests.shared import made_once

START_S = 180.0
BLOCKS = [block for page in pages() for block in blocks(page)]
RUN = [
    block
    for block in BLOCKS
    if (block.language != "text" or block.said("save as")) and not block.note.startswith(("not run", "as in"))
]
SECTIONS = ("run", "model", "env", "engine", "rollout", "buffer", "curriculum", "train", "outer", "swarm", "lora",
            "judge", "reference", "teacher", "eval", "sft")  # fmt: skip


@pytest.fixture(scope="session")
def installed() -> Installed:
    return install()


@pytest.fixture(scope="module")
def servers():
    """Servers that a page has started, which its later blocks may ask."""
    started: list[tuple[str, subprocess.Popen]] = []
    yield started
    end_servers(started)


@pytest.fixture(scope="module")
def folders(tmp_path_factory, installed):
    """Each page's folder; the tutorial's pages share one, as its reader's do. README's has the installation.

    A base model that pages share is trained once, but for the README's reader.
    """
    tutorial = tmp_path_factory.mktemp("tutorial")
    found = {
        page: tutorial if page.startswith(TUTORIAL) else tmp_path_factory.mktemp(re.sub(r"\W", "-", page))
        for page in pages()
    }
    cache = made_once("readers-cache", lambda folder: None)
    for folder in set(found.values()) - {found["README.md"]}:
        (folder / ".cache").symlink_to(cache)
    (found["README.md"] / ".venv").symlink_to(installed.bin.parent)
    return found


def test_the_package_under_test_is_the_installed_one(installed, tmp_path):
    code = (
        "import asyncrl, asyncrl.services, asyncrl.envs; print(asyncrl.__file__, asyncrl.services.__file__)"
    )
    done = installed.run([str(installed.bin / "python"), "-c", code], tmp_path)
    assert done.returncode == 0, done.stdout
    assert all(path.startswith(str(installed.bin.parent)) for path in done.stdout.split())


def test_the_package_has_one_version_which_the_changelog_is_about(installed, tmp_path):
    code = "import importlib.metadata; print('asyncrl', importlib.metadata.version('asyncrl'))"
    of_the_wheel = installed.run([str(installed.bin / "python"), "-c", code], tmp_path).stdout
    assert (
        installed.run(["asyncrl", "--version"], tmp_path).stdout == of_the_wheel == f"asyncrl {__version__}\n"
    )
    introduction, newest = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[:2]
    assert newest.startswith(__version__) or f"version {__version__} is everything below" in introduction


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_every_block_says_what_it_is(block: Block):
    assert block.language in LANGUAGES, "name the block's language; `text` is not run"
    if block.note.startswith("not run"):
        assert len(block.said("not run")) > 15, "say why it is not run"
    elif block.note:
        kinds = ("save as", "with", "as in")
        assert block.note == "servers" or any(map(block.said, kinds)), block.note


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.said("as in")], ids=lambda block: block.name)
def test_commands_that_another_page_runs_stand_there(block: Block):
    there = [line for other in RUN if other.page == block.said("as in") for line in commands(other)]
    assert [line for line in commands(block) if line not in there] == []


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_every_block_runs_as_printed(block: Block, installed, folders, servers, monkeypatch):
    folder = folders[block.page]
    if any(page != block.page for page, _ in servers):
        end_servers(servers)
    if block.said("save as"):
        target = folder / block.said("save as")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(block.text)
        if target.suffix == ".py":
            run(installed, [str(installed.bin / "python"), str(target)], folder)
    elif block.language == "python":
        # A reader types such lines where top-level `await` is allowed.
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        program = f"""
            import asyncio, inspect, pathlib
            code = compile(pathlib.Path("block.py").read_text(), "block.py", "exec", flags={flags})
            names = {{"__name__": "__main__"}}
            async def main():
                result = eval(code, names)
                if inspect.isawaitable(result):
                    await result
            asyncio.run(main())
        """
        (folder / "block.py").write_text(block.text)
        run(installed, [str(installed.bin / "python"), "-c", textwrap.dedent(program)], folder)
    elif block.language == "toml":
        recipe = folder / "recipe.toml"
        recipe.write_text(whole_recipe(block.text))
        run(installed, ["asyncrl", "config", str(recipe)], folder)
    elif block.note == "servers":
        for command in commands(block):
            servers.append((block.page, see_it_serve(installed, command, folder)))
    else:
        for command in commands(block):
            with monkeypatch.context() as patch:
                if (block.page, command) in AS_FOR_A_READER:
                    patch.delenv(FORK_SERVER, raising=False)
                words = f"{command} {block.added(command)}".strip()
                run(installed, ["bash", "-euo", "pipefail", "-c", words], folder)


def first_of_each_kind(page: str) -> set[tuple[str, str]]:
    """Return a page's first `asyncrl train`, `asyncrl eval` and so on."""
    found: dict[str, str] = {}
    for block in blocks(page):
        for command in commands(block) if block.language == "console" else ():
            found.setdefault(" ".join(command.split()[:2]), command)
    return {(page, command) for command in found.values()}


def run(installed: Installed, command: list[str], folder) -> None:
    done = installed.run(command, folder)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-6000:]}"


def commands(block: Block) -> list[str]:
    """Return the commands of a block without their comments; a backslash joins lines."""
    lines = block.text.replace("\\\n", " ").splitlines()
    stripped = [re.sub(r"(^|\s)#\s.*$", "", line).strip() for line in lines]
    return [line for line in stripped if line]


AS_FOR_A_READER = first_of_each_kind("README.md")
"""Commands all of whose processes are started as they are for a reader; those of others are forked."""


def whole_recipe(text: str) -> str:
    """Add to part of a recipe what every recipe must have."""
    given = tomllib.loads(text)
    missing = {"model": 'path = "sft"', "env": 'name = "gridworld"'}
    return text + "".join(f"\n[{name}]\n{line}\n" for name, line in missing.items() if name not in given)


def see_it_serve(installed: Installed, command: str, folder) -> subprocess.Popen:
    """Start a server and ask it for its health."""
    ready = folder / "ready.json"
    ready.unlink(missing_ok=True)
    log = folder / "server.log"
    with open(log, "wb") as sink:
        server = subprocess.Popen(
            [*shlex.split(command), "--ready-file", str(ready)],
            cwd=folder, env=installed.environment(), stdin=subprocess.DEVNULL, stdout=sink, stderr=sink,
        )  # fmt: skip
    deadline = time.monotonic() + START_S
    while not ready.exists():
        if server.poll() is not None or time.monotonic() > deadline:
            end_servers([("", server)])
            pytest.fail(f"{command}\n{log.read_text()}")
        time.sleep(0.1)
    url = re.search(r'"url":\s*"([^"]+)"', ready.read_text())
    assert url is not None
    with urllib.request.urlopen(f"{url[1]}/healthz", timeout=30) as reply:
        assert reply.status == 200
    return server


def end_servers(servers: list[tuple[str, subprocess.Popen]]) -> None:
    """End servers as Ctrl-C does."""
    while servers:
        _, server = servers.pop()
        server.send_signal(signal.SIGINT)
        try:
            server.wait(60)
        finally:
            server.kill()


def commands_named(page: str) -> list[list[str]]:
    """Return the words after `asyncrl` of each command in a page's text and blocks."""
    lines = [span for span in spans(page) if span.startswith("asyncrl ")]
    lines += [line for block in blocks(page) if block.language == "console" for line in commands(block)]
    # What the shell does with the output is no part of a command.
    words = [shlex.split(re.sub(r"\s[|>].*", "", line))[1:] for line in lines if line.startswith("asyncrl ")]
    # A command that the text only names must exist; one with arguments must be accepted as it stands.
    return [[*parts, "--help"] if len(parts) == 1 else parts for parts in words]


@pytest.fixture(scope="session")
def refused(installed) -> dict[str, list[list[str]]]:
    """The commands of each page that the installed command line does not take; one process parses all of them."""
    program = textwrap.dedent("""
        import contextlib, io, json
        from asyncrl.cli import parse
        def taken(words):
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    parse(words)
            except SystemExit as end:
                return end.code == 0
            return True
        pages = json.load(open("pages.json"))
        refused = {page: [words for words in named if not taken(words)] for page, named in pages.items()}
        json.dump(refused, open("refused.json", "w"))
    """)

    def parse_all(folder: Path) -> None:
        (folder / "pages.json").write_text(json.dumps({page: commands_named(page) for page in pages()}))
        run(installed, [str(installed.bin / "python"), "-c", program], folder)

    found: dict[str, list[list[str]]] = json.loads(
        (made_once("commands", parse_all) / "refused.json").read_text()
    )
    return found


@pytest.mark.parametrize("page", pages())
def test_commands_named_in_the_text_are_ones_the_command_line_takes(page, refused):
    assert refused[page] == []


@pytest.mark.parametrize("page", pages())
def test_scripts_named_in_the_text_exist_and_take_the_options_shown(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for span in spans(page):
        match = re.match(r"(?:python )?(scripts/[\w/]+\.(?:py|sh))(.*)", span)
        if match is None:
            continue
        script, options = ROOT / match[1], re.findall(r"--[\w-]+", match[2])
        assert script.is_file(), span
        if options:
            help_text = help_of(script)
            assert [option for option in options if option not in help_text] == [], span


@pytest.mark.parametrize("page", pages())
def test_settings_named_in_the_text_exist(page):
    from asyncrl.config import Config
    from asyncrl.extensions.settings import composed

    for span in spans(page):
        match = re.match(r"([a-z_]+)\.([a-z_]+)(?![\w./(])", span)
        if match is None or match[1] not in SECTIONS or span.endswith((".py", ".json", ".toml", ".jsonl")):
            continue
        section = composed(Config).model_fields[match[1]].annotation
        assert section is not None and match[2] in section.model_fields, span


@pytest.mark.parametrize("page", pages())
def test_files_that_a_page_names_or_links_to_exist(page):
    text = (ROOT / page).read_text()
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [link for link in links if link and not ((ROOT / page).parent / link).exists()] == []
    named = [
        span for span in spans(page) if re.fullmatch(r"(asyncrl|services|envs|tests|docs)/[\w/]+\.\w+", span)
    ]
    assert [path for path in named if not (ROOT / path).exists()] == []
