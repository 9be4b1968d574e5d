"""A provider of remote machines on the loopback interface, for the backends whose providers are elsewhere.

A machine is a process tree in its own pid, mount and network namespaces, into which programs are put one by one, as
containers do it. Over it lie the API of Kubernetes (pods, network policies, exec by WebSocket) and, on the same
server, a plain one that the stand-ins for the providers' libraries use. Needs root, bubblewrap and nsenter.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import tempfile
from typing import Any

import aiohttp
from aiohttp import web

from asyncrl.errors import ConfigError
from asyncrl.sandbox.bubblewrap import find_bwrap

USER = "20000"
INIT = ["/bin/sh", "-c", "echo up; trap : CHLD; while :; do sleep 3600 & wait $!; done"]
STDIN, STDOUT, STDERR, STATUS, STDIN_END, KILL = 0, 1, 2, 3, 4, 5


def missing() -> str:
    """Why there can be no cloud here; empty if there can."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        find_bwrap()
    except ConfigError as error:
        return str(error)
    return "" if shutil.which("nsenter") else "needs nsenter"


class Machine:
    async def start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="asyncrl-cloud-")
        os.chmod(self._folder, 0o777)
        read_end, write_end = os.pipe()
        options = [
            "--unshare-pid",
            "--unshare-net",
            "--unshare-ipc",
            "--die-with-parent",
            "--info-fd",
            str(write_end),
        ]
        options += [
            "--ro-bind",
            "/usr",
            "/usr",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--perms",
            "1777",
            "--tmpfs",
            "/tmp",
        ]
        for name in ("bin", "lib", "lib64"):
            options += ["--symlink", f"usr/{name}", f"/{name}"]
        options += ["--bind", self._folder, "/work"]
        self._init = await asyncio.create_subprocess_exec(
            find_bwrap(), *options, "--", *INIT, pass_fds=(write_end,), stdout=asyncio.subprocess.PIPE
        )
        os.close(write_end)
        with os.fdopen(read_end) as info:
            self._pid = json.load(info)["child-pid"]
        # Its mounts are complete once the init runs.
        assert self._init.stdout is not None
        await asyncio.wait_for(self._init.stdout.readline(), 10)

    async def spawn(self, argv: list[str], stdin: bool) -> asyncio.subprocess.Process:
        enter = ["nsenter", "-t", str(self._pid), "-m", "-p", "-n", "-i", "-S", USER, "-G", USER, "--"]
        enter += ["/usr/bin/env", "-C", "/"]
        return await asyncio.create_subprocess_exec(
            *enter,
            *argv,
            stdin=asyncio.subprocess.PIPE if stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": "/usr/bin:/bin"},
        )

    async def sweep(self) -> None:
        process = await self.spawn(["/bin/sh", "-c", "kill -9 -1"], stdin=False)
        await process.communicate()

    async def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._init.kill()
        await self._init.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


class Cloud:
    """The server. `bodies` keeps what pods and policies were asked for."""

    async def start(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        app = web.Application()
        pods = "/api/v1/namespaces/lab/pods"
        policies = "/apis/networking.k8s.io/v1/namespaces/lab/networkpolicies"
        app.router.add_post(pods, self._create_pod)
        app.router.add_get(f"{pods}/{{name}}", self._get_pod)
        app.router.add_delete(f"{pods}/{{name}}", self._delete)
        app.router.add_get(f"{pods}/{{name}}/exec", self._exec)
        app.router.add_post(policies, self._create_policy)
        app.router.add_delete(f"{policies}/{{name}}", self._delete_policy)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        for machine in self.machines.values():
            await machine.stop()
        await self._runner.cleanup()

    async def _create_pod(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body["metadata"]["name"]
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401, text="no token")
        self.machines[name], self.bodies[name] = Machine(), body
        await self.machines[name].start()
        return web.json_response(body, status=201)

    async def _get_pod(self, request: web.Request) -> web.Response:
        phase = "Running" if request.match_info["name"] in self.machines else "Failed"
        return web.json_response({"status": {"phase": phase}})

    async def _delete(self, request: web.Request) -> web.Response:
        machine = self.machines.pop(request.match_info["name"], None)
        if machine is None:
            return web.Response(status=404)
        await machine.stop()
        return web.json_response({})

    async def _create_policy(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.policies[body["metadata"]["name"]] = body
        return web.json_response(body, status=201)

    async def _delete_policy(self, request: web.Request) -> web.Response:
        del self.policies[request.match_info["name"]]
        return web.json_response({})

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        machine = self.machines[request.match_info["name"]]
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), max_msg_size=0)
        await socket.prepare(request)
        with_stdin = request.query["stdin"] == "true"
        process = await machine.spawn(request.query.getall("command"), with_stdin)
        reading = asyncio.create_task(self._take_input(socket, process, machine))

        async def pump(stream: asyncio.StreamReader | None, channel: int) -> None:
            assert stream is not None
            while data := await stream.read(65536):
                await socket.send_bytes(bytes([channel]) + data)

        with contextlib.suppress(ConnectionError):
            await asyncio.gather(pump(process.stdout, STDOUT), pump(process.stderr, STDERR))
            code = await process.wait()
            # nsenter passes a signal on by dying of it.
            code = 128 - code if code < 0 else code
            failure = {
                "reason": "NonZeroExitCode",
                "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
            }
            status = {"status": "Failure", **failure} if code else {"status": "Success"}
            await socket.send_bytes(bytes([STATUS]) + json.dumps(status).encode())
            await socket.close()
        reading.cancel()
        return socket

    async def _take_input(
        self, socket: web.WebSocketResponse, process: asyncio.subprocess.Process, machine: Machine
    ) -> None:
        async for message in socket:
            if message.type is not aiohttp.WSMsgType.BINARY:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == KILL:
                await machine.sweep()
            elif process.stdin is not None:
                with contextlib.suppress(ConnectionError):
                    if channel == STDIN_END:
                        process.stdin.close()
                    else:
                        process.stdin.write(data)
                        await process.stdin.drain()
