"""Browser: the shop's pages, what a real Chromium shows and does, its walls and its ends."""

import asyncio
import http.server
import os
import random
import signal
import subprocess
import sys
import threading

import psutil
import pytest

from asyncrl.env.protocol import Action, ToolCall
from asyncrl.env.scripted import to_action
from asyncrl.envs.browser import chromium
from asyncrl.envs.browser import env as env_module
from asyncrl.envs.browser.env import Browser, find
from asyncrl.envs.browser.pages import answer
from asyncrl.envs.browser.shop import Order, make_shop
from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.env_tools.check import check_env
from asyncrl.types import Task
from tests.waiting import wait_until

try:
    chromium.find_chromium()
    MISSING = ""
except ConfigError as error:
    MISSING = str(error)
real = pytest.mark.skipif(bool(MISSING), reason=MISSING)


@pytest.fixture(scope="module", autouse=True)
def _no_browser_left():
    yield
    chromium.stop_all()


def make(seed=0, **config):
    return Browser(Task("t", "browser", seed), **config)


def call(name, **arguments):
    return Action("", (ToolCall("call-0", name, arguments),))


def play(env, *actions):
    """Open the session, step through the actions (or functions of the page shown last); return opening and steps."""

    async def whole():
        try:
            messages = await env.reset()
            page, steps = messages[1]["content"], []
            for action in actions:
                steps.append(await env.step(action(page) if callable(action) else action))
                page = steps[-1].messages[-1]["content"] if steps[-1].messages else ""
            return messages[1]["content"], steps
        finally:
            await env.close()

    return asyncio.run(whole())


def expert(env):
    """Play the oracle; return the last step and all that was shown."""

    async def whole():
        try:
            messages = await env.reset()
            while True:
                message = env.oracle(messages)
                step = await env.step(to_action(message))
                if step.done:
                    return step, messages
                messages += [message, *step.messages]
        finally:
            await env.close()

    return asyncio.run(whole())


# -- the shop without a browser -----------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_shop_asks_for_something_it_has(level):
    for seed in range(50):
        shop = make_shop(level, random.Random(seed))
        assert shop == make_shop(level, random.Random(seed))
        article = shop.article(str(shop.wanted.article))
        assert article.kind in shop.goal
        assert len({a.name for a in shop.articles}) == len(shop.articles)
        if level == 3:
            alike = [a for a in shop.articles if (a.kind, a.colour) == (article.kind, article.colour)]
            assert len(alike) >= 2 and article.price == min(a.price for a in alike)
            assert shop.coupon not in shop.goal


def test_an_order_is_what_the_form_says_and_nonsense_is_refused():
    shop = make_shop(2, random.Random(0))
    assert answer(shop, "order", {"id": "2", "count": "3", "person": " Ada "}, True) == (303, "thanks")
    assert shop.orders == [Order(2, 3, "Ada")]
    for fields in ({"id": "99"}, {"id": "1", "count": "0"}, {"id": "1", "count": "x"}, {}):
        assert answer(shop, "order", fields, True)[0] == 404
    assert answer(shop, "order", {"id": "1"}, False)[0] == 404
    assert answer(shop, "news", {}, False)[0] == 404
    assert len(shop.orders) == 1


def test_what_is_searched_for_cannot_become_a_part_of_the_page():
    shop = make_shop(2, random.Random(0))
    assert "<b>" not in answer(shop, "search", {"q": "<b>x"}, False)[1]


def test_a_machine_without_chromium_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(chromium.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install playwright"):
        chromium.find_chromium()
    monkeypatch.undo()
    with pytest.raises(
        ConfigError,
        match=r"no Chromium found \(/no/such/browser\): install the package chromium-headless-shell or chromium",
    ):
        chromium.find_chromium("/no/such/browser")


# -- in a browser -------------------------------------------------------------------------------------------------


@real
@pytest.mark.parametrize("level", [1, 2, 3])
def test_the_expert_orders_what_was_asked_for_by_what_it_is_shown(level):
    for seed in (0, 1):
        env = make(seed, level=level)
        step, messages = expert(env)
        assert (step.reward, step.success, step.components["ordered"]) == (1.0, True, 1.0)
        assert env.shop.goal in messages[1]["content"]


@real
def test_a_page_is_shown_as_its_accessibility_tree():
    env = make(level=1)
    opening, (step,) = play(
        env, lambda page: call("click", ref=find(page, "link", env.shop.articles[0].name))
    )
    first = env.shop.articles[0]
    assert 'heading "Shop" [level=1] [ref=e2]' in opening
    assert [a.name for a in env.shop.articles if find(opening, "link", a.name)] == [
        a.name for a in env.shop.articles
    ]
    page = step.messages[0]["content"]
    assert f'heading "{first.name}" [level=1]' in page and f"{first.colour}, {first.price}" in page
    assert find(page, "button", "Order") and "127.0.0.1" not in opening + page


@real
def test_the_first_order_ends_the_episode_right_or_wrong():
    env = make(level=1)
    wrong = next(a for a in env.shop.articles if a.id != env.shop.wanted.article)
    _, (_, step) = play(
        env,
        lambda page: call("click", ref=find(page, "link", wrong.name)),
        lambda page: call("click", ref=find(page, "button", "Order")),
    )
    assert (step.done, step.reward, step.success) == (True, 0.0, False)


@real
def test_scripts_of_the_page_run():
    env = make(level=2)
    name = env.shop.articles[0].name

    async def whole():
        try:
            opening = (await env.reset())[1]["content"]
            menu = (await env.step(call("click", ref=find(opening, "button", "Menu")))).messages[0]["content"]
            item = (await env.step(call("goto", page="item?id=1"))).messages[0]["content"]
            typed = (await env.step(call("type", ref=find(item, "textbox", "Name"), text="Eva"))).messages[0][
                "content"
            ]
            return opening, menu, item, typed
        finally:
            await env.close()

    opening, menu, item, typed = asyncio.run(whole())
    kind = env.shop.articles[0].kind
    assert not find(opening, "link", kind) and find(menu, "link", kind)
    assert 'button "Order" [disabled]' in item and name in item
    assert 'button "Order" [disabled]' not in typed and "Eva" in typed


@real
def test_mistakes_are_observations():
    env = make(level=2, max_turns=20)
    mistakes = [
        (call("click", ref="e999"), "error: there is no element e999"),
        (call("click", ref="body"), "error: 'body' is no reference such as e5"),
        (call("goto", page="http://127.0.0.1/"), "error: 'http://127.0.0.1/' is no page of this shop"),
        (call("goto", page="../etc"), "error: '../etc' is no page of this shop"),
        (call("type", ref="e1", text="x" * 201), "error: a text has at most 200 characters"),
        (Action("hello"), "Use a tool."),
    ]
    _, steps = play(
        env,
        *(action for action, _ in mistakes),
        call("type", ref="e2", text="x"),
        call("goto", page="nowhere"),
    )
    assert [s.messages[0]["content"] for s in steps[: len(mistakes)]] == [
        expected for _, expected in mistakes
    ]
    assert steps[-2].messages[0]["content"].startswith("error: e2 cannot be used so: ")
    assert "There is no such page" in steps[-1].messages[0]["content"]
    assert not any(step.done for step in steps)


@real
def test_sessions_share_a_browser_and_nothing_else():
    async def whole():
        envs = [make(seed, level=1) for seed in (0, 2, 4)]
        pages = await asyncio.gather(*(env.reset() for env in envs))
        hosts = {env.host for env in envs}
        first = envs[0]
        ref = find(pages[0][1]["content"], "link", first.shop.articles[0].name)
        await first.step(call("click", ref=ref))
        # The others are where they were.
        later = [await env.tab.snapshot() for env in envs[1:]]
        # Another session's pages are behind a name it does not know, and the browser does not ask for them.
        foreign = f"{first.host.url}/{first.tab._key}/home"
        reached = await envs[1].host.call(_fetch(envs[1].tab._page, foreign))
        await asyncio.gather(*(env.close() for env in envs))
        return hosts, [p[1]["content"].split("\n", 1)[1] for p in pages[1:]], later, reached

    hosts, before, later, reached = asyncio.run(whole())
    assert len(hosts) == 1 and before == later
    assert reached == "refused"


async def _fetch(page, url):
    return await page.evaluate(
        "url => fetch(url, {mode: 'no-cors'}).then(() => 'reached', () => 'refused')", url
    )


@real
def test_many_sessions_take_turns_and_those_cut_off_while_they_open_leave_nothing():
    async def whole():
        envs = [make(seed, level=1) for seed in range(0, 24, 2)]
        openings = [asyncio.ensure_future(env.reset()) for env in envs]
        # Cut some off at different points of their opening.
        for number, opening in enumerate(openings[8:]):
            await asyncio.sleep(0.05 * number)
            opening.cancel()
        opened = await asyncio.gather(*openings, return_exceptions=True)
        host = envs[0].host
        links = [find(messages[1]["content"], "link", env.shop.articles[0].name)
                 for env, messages in zip(envs[:8], opened, strict=False)]  # fmt: skip
        steps = await asyncio.gather(
            *(env.step(call("click", ref=ref)) for env, ref in zip(envs, links, strict=False))
        )
        await asyncio.gather(*(env.close() for env in envs))
        while host._users:
            await asyncio.sleep(0.02)
        left = await host.call(_count_contexts(host))
        return (
            host.ended,
            left,
            [find(s.messages[0]["content"], "button", "Order") for s in steps],
            dict(host.sites),
        )

    ended, left, buttons, sites = asyncio.run(asyncio.wait_for(whole(), 120))
    assert (ended, left, sites) == (False, 0, {})
    assert len(buttons) == 8 and all(buttons)


async def _count_contexts(host):
    return len(host._browser.contexts)


@real
def test_a_page_reaches_nothing_but_its_own_site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    async def whole():
        env = make(level=1)
        await env.reset()
        page = env.tab._page
        own = f"{env.host.url}/{env.tab._key}/home"
        others = [f"http://127.0.0.1:{server.server_address[1]}/", "file:///etc/passwd"]
        found = [await env.host.call(_fetch(page, url)) for url in (own, *others)]
        await env.close()
        return found

    try:
        assert asyncio.run(whole()) == ["reached", "refused", "refused"]
    finally:
        server.shutdown()
        server.server_close()


def browsers(root):
    """Live processes of a browser below a process."""
    found = []
    for process in psutil.Process(root).children(recursive=True):
        try:
            if "chrom" in process.name() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@real
def test_a_browser_that_dies_is_infrastructure_and_the_next_session_gets_another():
    async def whole():
        messages = await env.reset()
        for process in browsers(os.getpid()):
            process.kill()
        action = call("click", ref=find(messages[1]["content"], "link", env.shop.articles[0].name))
        try:
            await env.step(action)
        finally:
            await env.close()

    env = make(level=1)
    with pytest.raises(InfrastructureError):
        asyncio.run(whole())
    wait_until(lambda: not env.host._thread.is_alive())
    step, _ = expert(make(level=1))
    assert step.reward == 1.0


@real
def test_a_browser_that_is_too_slow_is_infrastructure_and_not_the_agents_mistake(monkeypatch):
    for module in (chromium, env_module):
        monkeypatch.setattr(module, "ACTION_TIMEOUT_S", 0.3)
    busy = "const start = Date.now(); while (Date.now() - start < 1000);"

    async def whole():
        await env.reset()
        try:
            await env.host.call(env.tab._page.set_content(f'<button onmousemove="{busy}">Buy</button>'))
            await env.step(call("click", ref=find(await env.tab.snapshot(), "button", "Buy")))
        finally:
            await env.close()

    env = make(level=1)
    with pytest.raises(InfrastructureError, match=r"did not answer: .*Timeout 300ms exceeded"):
        asyncio.run(whole())


@real
@pytest.mark.parametrize(("option", "taken"), [("xl", True), ("no such size", False)])
def test_an_element_takes_what_it_offers(option, taken):
    async def whole():
        await env.reset()
        page = env.tab._page
        await env.host.call(
            page.set_content(
                "<select><option value=xl>Extra large</option></select><button disabled>No</button>"
            )
        )
        choice, button, tab = page.locator("select"), page.locator("button"), env.tab
        try:
            return [await env.host.call(tab._takes(choice, "select_option", option)),
                    await env.host.call(tab._takes(button, "click"))]  # fmt: skip
        finally:
            await env.close()

    env = make(level=1)
    assert asyncio.run(whole()) == [taken, False]


@real
def test_the_browser_ends_when_nobody_has_used_it_for_a_while(monkeypatch):
    monkeypatch.setattr(chromium, "IDLE_S", 0.2)
    env = make(level=1)
    play(env)
    wait_until(lambda: not browsers(os.getpid()))
    assert env.host.ended
    assert play(make(level=1))[0].startswith("Order one ")


@real
@pytest.mark.slow
def test_a_process_that_is_killed_leaves_no_browser():
    program = (
        "import asyncio, time\n"
        "from asyncrl.envs.browser.env import Browser\n"
        "from asyncrl.types import Task\n"
        "async def main():\n"
        "    env = Browser(Task('t', 'browser', 0))\n"
        "    await env.reset()\n"
        "    print('open', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "open\n"
        running = browsers(child.pid)
        child.send_signal(signal.SIGKILL)
    assert running
    wait_until(lambda: not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in running))


def test_wrong_settings_are_refused():
    with pytest.raises(ValueError, match="level: must be one of"):
        make(level=4)
    with pytest.raises(ConfigError, match="no Chromium found"):
        make(chromium="/no/such/browser")


@real
@pytest.mark.slow
def test_it_passes_the_environment_check():
    assert [f for f in check_env("browser", num_tasks=3) if not f.ok] == []


def test_what_is_missing_is_said_where_there_is_no_browser(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert Browser.missing().startswith("a browser: no Chromium found (chromium-headless-shell, ")
