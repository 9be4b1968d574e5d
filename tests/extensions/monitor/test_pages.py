"""The pages in a real browser: a run that goes on, its trajectories, two runs beside each other, the exported file."""

import dataclasses
import importlib.resources
import re

import pytest

from asyncrl.data.table import TrajectoryTable, write_trajectories
from asyncrl.extensions.monitor.service import monitor_app
from asyncrl.run.replays import new_replay_file
from tests.app_thread import AppThread
from tests.chromium import open_chromium
from tests.credentials import RUN, TOKEN
from tests.extensions.monitor.trees import tree_group
from tests.run.folders import add_activity, add_step, make_run

pytestmark = pytest.mark.slow
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
PAGES = ("overview", "timeline", "episodes", "failures", "settings", "logs")


@pytest.fixture(scope="module")
def browser():
    with open_chromium() as started:
        yield started


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("monitor")


def add_tree(run):
    """Add a step with a group whose episodes make a tree, the first one played again."""
    TrajectoryTable(run / "trajectories").write(9, [tree_group()])
    again = dataclasses.replace(tree_group().trajectories[0], info={"replay": "recorded actions"})
    played = dataclasses.replace(tree_group(), trajectories=(again,))
    write_trajectories(new_replay_file(run, 9, "g-tree", 0), 9, [played])


@pytest.fixture(scope="module")
def url(runs):
    make_run(runs / "runs" / "one")
    add_tree(make_run(runs / "runs" / "two", overrides=("train.learning_rate=0.25",)))
    service = AppThread(monitor_app(runs / "runs", RUN.access("monitor")), runs)
    yield service.url
    service.close()


@pytest.fixture
def page(browser, url):
    """A page opened by its link, which fails the test if it says anything on the console."""
    context = browser.new_context(viewport=DESKTOP, accept_downloads=True)
    opened, said = context.new_page(), []
    opened.on(
        "console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None
    )
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(f"{url}/#token={TOKEN}")
    opened.get_by_role("link", name="one", exact=True).wait_for()
    yield opened
    context.close()
    assert said == []


def test_the_token_leaves_the_address_and_without_it_nothing_is_shown(browser, page, url):
    assert TOKEN not in page.url
    other = browser.new_page()
    other.goto(url)
    assert "it holds the token" in other.get_by_role("alert").inner_text()
    other.close()


def test_the_curve_of_a_live_run_moves(page, url, runs):
    (runs / "runs" / "one" / "lives.json").touch()
    page.get_by_role("link", name="one", exact=True).click()
    curve = page.get_by_role("img", name=re.compile("^Reward: mean of the step"))
    curve.wait_for()
    before = curve.get_attribute("aria-label")
    add_step(runs / "runs" / "one", 4, **{"reward/mean": 0.875})
    page.get_by_role("img", name=re.compile("^Reward: mean of the step 0.875")).wait_for()
    assert "0.300" in before
    assert "4 of 10" in page.locator(".tiles").inner_text()
    page.get_by_text("live", exact=True).wait_for()


def test_trajectories_are_filtered_and_one_is_opened_by_the_keyboard(page):
    page.get_by_role("link", name="one", exact=True).press("Enter")
    page.get_by_role("link", name="Trajectories").press("Enter")
    count = page.get_by_text("of 24 trajectories")
    count.wait_for()
    page.get_by_label("text in messages").fill("north")
    page.keyboard.press("Enter")
    page.get_by_text("1 to 6 of 6 trajectories").wait_for()
    page.get_by_label("reward from").fill("2")
    page.keyboard.press("Enter")
    page.get_by_text("No trajectory passes these filters.").wait_for()
    page.get_by_role("button", name="Clear").press("Enter")
    count.wait_for()
    page.get_by_role("button", name="reward").press("Enter")
    page.get_by_role("columnheader", name="reward ↓").wait_for()
    page.get_by_role("link", name="t3-0").first.press("Enter")
    page.get_by_role("heading", name="step 3, task t3-0").wait_for()


def test_an_episode_shows_its_messages_and_colours_its_tokens(page, url):
    page.goto(f"{url}/#/run/one/episodes/1/g-t1-0/2")
    page.get_by_text('move({"to": "east"})').wait_for()
    assert (
        page.locator(".message").all_inner_texts()[-1]
        == "assistant · turn 1 · reward 0.500\nDone </script> & gone"
    )
    tokens = page.locator(".tokens span")
    assert tokens.count() == 18
    colours = "() => [...document.querySelectorAll('.tokens span')].map((token) => token.style.background)"
    by_logprob = page.evaluate(colours)
    assert sum(colour != "" for colour in by_logprob) == page.locator(".tokens span.sampled").count() == 6
    page.get_by_label("colour tokens by").select_option(label="version")
    assert page.evaluate(colours) != by_logprob
    page.locator(".tokens").focus()
    for _ in range(8):
        page.keyboard.press("ArrowRight")
    assert page.locator(".tokens span.chosen").get_attribute("data-i") == "7"
    values = "log-probability -5.500, version 0, advantage 2, ratio 1.649, entropy 1.500"
    assert values in page.get_by_text("token 7:").inner_text()


def test_siblings_stand_side_by_side(page, url):
    page.goto(f"{url}/#/run/one/episodes/1/g-t1-0/0")
    page.get_by_role("link", name="beside").first.click()
    page.get_by_role("heading", name="Episode 1").wait_for()
    assert page.locator(".beside .tokens").count() == 2


def test_the_tree_of_a_group_is_walked_by_the_keyboard_and_a_turn_opens_its_conversation(page, url):
    page.goto(f"{url}/#/run/two/episodes/9/g-tree/0")
    tree = page.get_by_role("group", name="Tree of the group")
    nodes = tree.get_by_role("link")
    nodes.first.wait_for()
    assert nodes.count() == 10
    assert page.locator(".tree-field path.branch").count() == 2
    assert page.locator(".tree-field path.call").count() == 1
    # One stop of the tab key; arrows go on from there.
    assert page.locator('.tree a[tabindex="0"]').count() == 1
    page.locator('.tree a[tabindex="0"]').focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    at = "episode 1, turn 2: 1 tokens"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == at
    page.get_by_text(f'{at}: turn 2 go({{"by": [20]}})').wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Episode 1", exact=True).wait_for()
    page.locator('.message[data-turn="2"]:focus').wait_for()
    assert "turn 2" in page.evaluate("document.activeElement.textContent")


def test_an_episode_that_was_played_again_stands_beside_the_recorded_one(page, url, runs):
    page.goto(f"{url}/#/run/two/episodes/9/g-tree/0")
    page.get_by_role("heading", name="Episode 0, played again: recorded actions").wait_for()
    assert page.locator(".beside .tokens").count() == 2
    page.get_by_text("Play this again").press("Enter")
    page.get_by_text(f"asyncrl replay {runs / 'runs' / 'two'} 9/g-tree/0", exact=True).wait_for()
    page.get_by_role("button", name="Copy").click()
    page.get_by_text(re.compile("^copied$|^select the command")).wait_for()


def test_two_runs_are_compared_by_curves_and_settings(page):
    page.get_by_label("choose one").check()
    page.get_by_label("choose two").check()
    page.get_by_role("button", name="Compare chosen").click()
    page.get_by_role("img", name=re.compile("^Reward: .*one .*two ")).wait_for()
    assert page.locator("tbody tr").all_inner_texts()[0].split("\t")[0] == "train.learning_rate"
    # Each run has one colour, and the lines of one run are told apart by their pattern.
    marks = (
        page.get_by_role("group", name="Staleness", exact=True)
        .locator("tr:not(.limit) .u-marker")
        .evaluate_all(
            "marks => marks.slice(1).map((mark) => [mark.style.borderColor, mark.style.borderStyle])"
        )
    )
    (mean, pattern), (largest, other), *second = marks
    assert mean == largest and pattern != other
    assert [colour for colour, _ in second] == [second[0][0]] * 2 and second[0][0] != mean


def test_the_timeline_tells_of_spans_by_the_arrow_keys(page, runs, url):
    add_activity(runs / "runs" / "one", time=1001.0)
    add_activity(runs / "runs" / "one", time=1003.0)
    page.goto(f"{url}/#/run/one/timeline")
    page.get_by_role("img", name=re.compile("^trainer: ")).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile("^trainer, .* s: waiting for groups, step 1$")).wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile("^trainer, .* s: training, step 1$")).wait_for()
    page.get_by_role("img", name=re.compile("^env: 2 spans")).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_text(re.compile("^env, .* s: stepping, 4 sessions$")).wait_for()
    page.get_by_text("engine-0: episodes wait for their environments 100 %").wait_for()


def test_an_exported_file_opens_without_the_server(page, browser, runs):
    page.get_by_label("choose one").check()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export chosen as HTML").click()
    file = runs / "exported.html"
    download.value.save_as(file)
    context = browser.new_context(offline=True)
    opened, said = context.new_page(), []
    opened.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(file.as_uri())
    opened.get_by_role("link", name="one", exact=True).click()
    opened.get_by_role("img", name=re.compile("^Reward: mean of the step")).wait_for()
    opened.get_by_role("link", name="Trajectories").click()
    opened.get_by_label("text in messages").fill("north")
    opened.keyboard.press("Enter")
    opened.get_by_text("1 to 6 of 6 trajectories").wait_for()
    opened.get_by_role("link", name="t3-0").first.click()
    opened.locator(".tokens").wait_for()
    context.close()
    assert said == []


@pytest.mark.parametrize(
    "view",
    [
        "",
        "compare/one,two",
        *(f"run/one/{name}" for name in PAGES),
        "run/one/episodes/1/g-t1-0/2",
        "run/two/episodes/9/g-tree/0",
    ],
)
def test_every_page_is_accessible_and_fits_a_desk_and_a_phone(page, url, view):
    axe = (
        importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    )
    page.goto(f"{url}/#/{view}")
    page.get_by_role("heading").first.wait_for()
    page.wait_for_load_state("networkidle")
    found = page.evaluate(f"async () => {{ {axe}; return (await axe.run()).violations; }}")
    serious = [
        (one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
