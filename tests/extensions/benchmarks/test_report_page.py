"""Reports in a real browser: they load nothing, say nothing on the console, and are readable to all."""

import pytest

from asyncrl.extensions.benchmarks.leaderboard_command import write_leaderboard
from asyncrl.extensions.benchmarks.report import html_report
from asyncrl.extensions.benchmarks.results import evaluate_samples
from tests.chromium import open_chromium
from tests.extensions.benchmarks.test_budget_curve import budgets
from tests.extensions.benchmarks.test_results import samples, whole

axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")

pytestmark = pytest.mark.slow


def shown_everywhere(file, heading, use=lambda page: None):
    """Open a page from its file on a desktop and a phone, and check what all who read it need.

    use: does something on it.
    """
    with open_chromium() as browser:
        for width, height in ((1280, 800), (390, 844)):
            context = browser.new_context(viewport={"width": width, "height": height}, offline=True)
            page, said = context.new_page(), []
            page.on("console", lambda message, said=said: said.append(message.text))
            page.on("pageerror", lambda error, said=said: said.append(str(error)))
            page.goto(file.as_uri())
            assert page.get_by_role("heading", name=heading).count() == 1
            use(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (
                "only tables scroll sideways"
            )
            wrong = axe.Axe().run(page).response["violations"]
            serious = [one["id"] for one in wrong if one["impact"] in ("serious", "critical")]
            assert serious == []
            assert said == []
            page.screenshot(path=file.with_name(f"{file.stem}-{width}.png"), full_page=True)
            context.close()


def test_the_report_opens_from_a_file_on_a_desktop_and_a_phone(tmp_path):
    outcomes = [[0, 1]] * 8
    rows = [
        *samples("first", outcomes),
        *samples("runs/long-name/checkpoints/step-000010", [[1, 0]] * 7 + [[0, 0]]),
    ]
    found = evaluate_samples(rows, ["first", "runs/long-name/checkpoints/step-000010"], 2)
    file = tmp_path / "report.html"
    file.write_text(html_report(whole(found), rows))

    def open_the_worst(page):
        summary = page.locator("summary").first
        summary.focus()
        page.keyboard.press("Enter")
        page.get_by_text("<b>go</b>").first.wait_for()

    shown_everywhere(file, "Comparison", open_the_worst)


def test_curves_over_budgets_open_from_a_file_on_a_desktop_and_a_phone(tmp_path):
    budgets(tmp_path, read_tokens=1000)
    write_leaderboard(tmp_path, tmp_path, "", ["0.1,2", "new=0,1"])

    def look(page):
        assert page.get_by_role("img").count() == 2
        assert page.locator("polyline").count() == 4

    shown_everywhere(tmp_path / "leaderboard.html", "Success against cost", look)
