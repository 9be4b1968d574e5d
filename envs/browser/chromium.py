"""One headless Chromium and one loopback web server for all sessions of this process, on a thread of their own.

They start with the first session and end half a minute after the last one, or with the process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import importlib.util
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from aiohttp import web

from asyncrl.errors import ConfigError, InfrastructureError

Result = TypeVar("Result")
Pages = Callable[[str, dict[str, str], bool], tuple[int, str]]
"""Page name, query or form fields, whether it is a POST -> status and body (see `pages.answer`)."""
NAMES = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
"""In this order: a shell without windows opens a page in a quarter of the processor time of a whole browser."""
ARGUMENTS = ["--renderer-process-limit=4", "--disable-background-networking", "--disable-dev-shm-usage"]
START_TIMEOUT_S = 60.0
ACTION_TIMEOUT_S = 5.0
"""Deadline of an action on an element that can take it; by then it is clear whether there is such an element."""
PAGE_TIMEOUT_MS = 20_000.0
"""Deadline of loading and reading a page: only an overloaded machine takes this long."""
OFFERS = (
    "(element, wanted) => [...(element.options || [])].some(o => o.value === wanted || o.label === wanted)"
)
CALL_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0
IDLE_S = 30.0
AT_ONCE = 4
"""Sessions that open or act at the same time; more would only slow each other down until they miss their
deadlines."""


def find_chromium(path: str = "") -> str:
    """Return the browser's executable. Raises `ConfigError` saying what to install."""
    if importlib.util.find_spec("playwright") is None:
        raise ConfigError("the browser environment needs playwright: pip install playwright")
    found = next(filter(None, map(shutil.which, [path] if path else NAMES)), None)
    if found is None:
        raise ConfigError(
            f"no Chromium found ({path or ', '.join(NAMES)}): install the package chromium-headless-shell or "
            "chromium, or name the executable in env.config.chromium"
        )
    return found


class Tab:
    """One session's page, in a context that shares nothing with other sessions."""

    def __init__(self, host: Host, key: str, context: Any, page: Any) -> None:
        self._host, self._key, self._context, self._page = host, key, context, page
        self._frame = ""
        """What playwright puts before the references of the current page; removed from what is shown."""

    async def snapshot(self) -> str:
        """Return the page's accessibility tree, one element per line, each with its reference."""
        return await self._host.call(self._snapshot())

    async def click(self, ref: str, limit_s: float = ACTION_TIMEOUT_S) -> str:
        """Click an element; return the new snapshot. Raises `ValueError` if that is impossible within `limit_s`."""
        return await self._host.call(self._act(limit_s, ref, "click"))

    async def type(self, ref: str, text: str, limit_s: float = ACTION_TIMEOUT_S) -> str:
        return await self._host.call(self._act(limit_s, ref, "fill", text))

    async def select(self, ref: str, option: str, limit_s: float = ACTION_TIMEOUT_S) -> str:
        return await self._host.call(self._act(limit_s, ref, "select_option", option))

    async def goto(self, page: str) -> str:
        """Open a page of the site by its name."""
        return await self._host.call(self._goto(page))

    async def close(self) -> None:
        if self._host.ended:
            self._host.leave()
        else:
            await self._host.call(self._close())

    async def _snapshot(self) -> str:
        await self._page.wait_for_load_state("load", timeout=PAGE_TIMEOUT_MS)
        tree = await self._page.locator("body").aria_snapshot(mode="ai", timeout=PAGE_TIMEOUT_MS)
        found = re.search(r"\[ref=(\w*?)e\d+\]", tree)
        self._frame = found.group(1) if found else ""
        return re.sub(r" \[(cursor=pointer|active)\]", "", tree).replace(f"[ref={self._frame}e", "[ref=e")

    async def _act(self, limit_s: float, ref: str, action: str, *arguments: str) -> str:
        if not re.fullmatch(r"e\d{1,6}", ref):
            raise ValueError(f"{ref[:40]!r} is no reference such as e5")
        element = self._page.locator(f"aria-ref={self._frame}{ref}")
        try:
            if not await element.count():
                raise ValueError(f"there is no element {ref}")
            await getattr(element, action)(*arguments, timeout=1000 * limit_s)
        except self._host.errors as error:
            self._host.check_alive(error)
            late = isinstance(error, self._host.late) and limit_s >= ACTION_TIMEOUT_S
            if late and await self._takes(element, action, *arguments):
                raise InfrastructureError(f"browser: {ref} did not answer: {_first_line(error)}") from error
            raise ValueError(f"{ref} cannot be used so: {_first_line(error)}") from error
        return await self._snapshot()

    async def _takes(self, element: Any, action: str, *arguments: str) -> bool:
        """Return True if an element could have taken the action; for one that cannot, playwright waits until its
        deadline."""
        if not await element.is_visible() or not await element.is_enabled():
            return False
        return action != "select_option" or await element.evaluate(OFFERS, arguments[0])

    async def _goto(self, page: str) -> str:
        try:
            await self._page.goto(f"{self._host.url}/{self._key}/{page}", timeout=PAGE_TIMEOUT_MS)
        except self._host.errors as error:
            self._host.check_alive(error)
            raise ValueError(f"{page[:80]!r} cannot be opened: {_first_line(error)}") from error
        return await self._snapshot()

    async def _close(self) -> None:
        self._host.sites.pop(self._key, None)
        try:
            await self._context.close()
        finally:
            self._host.release()


class Host:
    """The browser, the server, and the thread of both."""

    url = ""
    errors: type[Exception]
    """What playwright raises."""
    late: type[Exception]
    """The exception it raises after a deadline."""

    def __init__(self, executable: str) -> None:
        self.executable = executable
        self.sites: dict[str, Pages] = {}
        self.ended = False
        self._users = 0
        self._idle: asyncio.TimerHandle | None = None
        self._places = asyncio.Semaphore(AT_ONCE)
        self._loop = asyncio.new_event_loop()
        self._started: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="browser", daemon=True)
        self._thread.start()

    async def open(self, pages: Pages) -> Tab:
        """Serve a site and open it. Raises `InfrastructureError` if the browser does not start."""
        return await self.call(self._open(pages), START_TIMEOUT_S + CALL_TIMEOUT_S)

    async def call(self, work: Coroutine[Any, Any, Result], timeout_s: float = CALL_TIMEOUT_S) -> Result:
        """Run a coroutine on the browser's thread, when it is its turn.

        Raises `InfrastructureError` if the browser is gone or does not answer within `timeout_s`, not counting the
        wait for the turn.
        """
        if self.ended:
            work.close()
            raise InfrastructureError("the browser has ended")
        future = asyncio.run_coroutine_threadsafe(self._in_turn(work, timeout_s), self._loop)
        try:
            return await asyncio.wrap_future(future)
        except (ValueError, InfrastructureError):
            raise
        except Exception as error:
            raise InfrastructureError(f"browser: {_first_line(error)}") from error

    async def _in_turn(self, work: Coroutine[Any, Any, Result], timeout_s: float) -> Result:
        scope = asyncio.timeout(timeout_s)
        try:
            async with self._places, scope:
                return await work
        except TimeoutError as error:
            if not scope.expired():
                raise
            # Actions have their own, much shorter deadlines: this one hangs.
            self.ended = True
            raise InfrastructureError(f"the browser did not answer within {timeout_s:g} s") from error
        finally:
            work.close()

    def check_alive(self, error: Exception) -> None:
        """Raise `InfrastructureError` if the browser failed rather than the action."""
        if not self._browser.is_connected():
            self.ended = True
            raise InfrastructureError(f"the browser is gone: {_first_line(error)}") from error

    def release(self) -> None:
        """Unregister a session; end the browser when none comes for a while, or at once if it is unusable."""
        self._users -= 1
        if not self._users:
            self._idle = self._loop.call_later(0 if self.ended else IDLE_S, self._loop.stop)

    def leave(self) -> None:
        """Unregister a session of a browser that has ended."""
        # The thread may be gone, too.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.release)

    def stop(self) -> None:
        """End the browser and wait for that."""
        self.ended = True
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self.ended = True
        try:
            self._loop.run_until_complete(asyncio.wait_for(self._end(), STOP_TIMEOUT_S))
        except Exception:
            # The driver ends with its pipe anyway.
            return
        finally:
            self._loop.close()

    async def _open(self, pages: Pages) -> Tab:
        self._users += 1
        if self._idle is not None:
            self._idle.cancel()
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        key, context = secrets.token_urlsafe(12), None
        try:
            # Shared by all callers: cancelling one does not end it.
            await asyncio.shield(self._started)
            context = await self._browser.new_context()
            await context.route(lambda url: not url.startswith(f"{self.url}/{key}/"), _refuse)
            self.sites[key] = pages
            tab = Tab(self, key, context, await context.new_page())
            await tab._goto("home")
            return tab
        except BaseException as error:
            self.sites.pop(key, None)
            if context is not None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(asyncio.shield(context.close()), STOP_TIMEOUT_S)
            # A slow page does not mean that the browser is broken, and neither does a cancelled session.
            self.ended = self.ended or not isinstance(error, ValueError | asyncio.CancelledError)
            self.release()
            if isinstance(error, ValueError):
                raise InfrastructureError(f"browser: {error}") from error
            raise

    async def _start(self) -> None:
        from playwright.async_api import Error, TimeoutError, async_playwright

        self.errors, self.late = Error, TimeoutError
        app = web.Application()
        app.router.add_route("*", "/{key}/{page}", self._serve)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._playwright = await async_playwright().start()
        # Chromium's own sandbox does not work for root; only pages of this process are ever loaded.
        self._browser = await self._playwright.chromium.launch(
            executable_path=self.executable,
            args=ARGUMENTS,
            chromium_sandbox=os.geteuid() != 0,
            timeout=START_TIMEOUT_S * 1000,
        )

    async def _serve(self, request: web.Request) -> web.Response:
        pages = self.sites.get(request.match_info["key"])
        if pages is None:
            return web.Response(status=404)
        posted = request.method == "POST"
        fields = await request.post() if posted else request.query
        status, body = pages(request.match_info["page"], {k: str(v) for k, v in fields.items()}, posted)
        if status == 303:
            return web.Response(status=303, headers={"Location": body})
        return web.Response(text=body, status=status, content_type="text/html")

    async def _end(self) -> None:
        if self._started is None:
            return
        await asyncio.gather(self._started, return_exceptions=True)
        if hasattr(self, "_browser"):
            await self._browser.close()
        if hasattr(self, "_playwright"):
            await self._playwright.stop()
        await self._runner.cleanup()


_HOSTS: dict[str, Host] = {}
_LOCK = threading.Lock()


def shared_host(executable: str) -> Host:
    """Return this process's browser, a new one if the last has ended."""
    with _LOCK:
        host = _HOSTS.get(executable)
        if host is None or host.ended:
            host = _HOSTS[executable] = Host(executable)
        return host


@atexit.register
def stop_all() -> None:
    """End every browser of this process."""
    with _LOCK:
        hosts = list(_HOSTS.values())
        _HOSTS.clear()
    for host in hosts:
        host.stop()


async def _refuse(route: Any) -> None:
    await route.abort("blockedbyclient")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
