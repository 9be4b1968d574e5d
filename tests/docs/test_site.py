"""The documentation as a site: built for real, complete, self-contained, and searched in a real browser."""

import functools
import http.server
import re
import subprocess
import sys
import threading

import pytest

from asyncrl import cli
from asyncrl.algo import registry
from asyncrl.algo.presets import known_presets
from asyncrl.env.registry import ENVS
from tests.chromium import open_chromium
from tests.docs.blocks import ROOT, pages
from tests.scripts import load_script
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
LOADED = re.compile(r"<(?:script|img|iframe)\b[^>]*\bsrc=\"([^\"]+)\"|<link\b[^>]*\bhref=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(ROOT / "scripts" / "site" / "build_site.py"), "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def builder():
    return load_script("site/build_site")


@pytest.fixture(scope="module", params=["files", "http"])
def address(request, site):
    """The site's address, as files and as any web server has it."""
    if request.param == "files":
        yield site.as_uri()
        return
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_every_page_of_the_repository_is_in_the_site(site):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    wanted = {page.removesuffix(".md").replace("README", "index") + ".html" for page in pages()}
    assert wanted - built == set()
    home = (site / "index.html").read_text()
    assert [page for page in wanted if page != "index.html" and f'href="./{page}"' not in home] == []


def test_no_page_loads_anything_from_another_machine(site):
    loaded = {
        first or second for path in site.rglob("*.html") for first, second in LOADED.findall(path.read_text())
    }
    assert loaded
    assert [name for name in loaded if "//" in name] == []


def test_the_reference_has_what_the_code_has(site):
    reference = site / "docs" / "reference"
    commands = (reference / "commands.html").read_text()
    assert [name for name in cli.commands() if f'id="asyncrl-{name}"' not in commands] == []
    assert "write a file with an environment to change" in commands
    parts = (reference / "parts.html").read_text()
    names = {name for known in (known_presets(), *registry.parts().values()) for name in known}
    assert [name for name in names if f"<code>{name}</code>" not in parts] == []
    environments = (reference / "environments.html").read_text()
    assert [name for name in ENVS if f"<code>{name}</code>" not in environments] == []
    metrics = (reference / "metrics.html").read_text()
    wanted = (
        "reward/mean",
        "staleness/max",
        "clip_fraction/upper",
        "time/publish_s",
        "correction/{name}/weight",
    )
    assert [name for name in wanted if f"<code>{name}</code>" not in metrics] == []


def test_the_search_finds_a_page_and_opens_it_without_a_word_on_the_console(address):
    said: list[str] = []
    asked: set[str] = set()
    with open_chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.on(
            "console",
            lambda message: said.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.add(request.url))
        page.goto(f"{address}/index.html")
        page.get_by_role("link", name="Troubleshooting", exact=True).first.click()
        page.get_by_role("heading", name="Troubleshooting").wait_for()
        focused = page.locator("input:focus")

        def has_the_focus() -> bool:
            # A key that is pressed before the page's script listens is lost, as is what is typed before the field
            # has the focus.
            if not focused.count():
                page.keyboard.press("/")
            return bool(focused.count())

        wait_until(has_the_focus)
        page.keyboard.type("quarantined contributes")
        page.get_by_role("option", name="quarantined and contributes no longer", selected=True).wait_for()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("quarantined"))
        assert "gets no more work" in page.get_by_role("main").inner_text()
    assert said == []
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize(
    ("link", "complaint"), [("[x](none.md)", "page does not exist"), ("[x](#none)", "anchor does not exist")]
)
def test_a_broken_link_ends_the_build(builder, tmp_path, monkeypatch, link, complaint):
    (tmp_path / "repository").mkdir()
    for name in ("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        (tmp_path / "repository" / name).write_text(f"# Page\n\n{link if name == 'README.md' else 'text'}\n")
    monkeypatch.setattr(builder, "ROOT", tmp_path / "repository")
    monkeypatch.setattr(builder, "NAVIGATION", {"Project": ["CONTRIBUTING.md", "AGENTS.md", "CHANGELOG.md"]})
    monkeypatch.setattr(builder, "reference_pages", dict)
    with pytest.raises(SystemExit, match=complaint):
        builder.build(tmp_path / "work")


def test_a_new_page_is_found_among_the_how_tos(builder):
    assert re.search(r'"How-to" = \[.*"docs/new\.md"', builder.navigation({"README.md", "docs/new.md"}))
