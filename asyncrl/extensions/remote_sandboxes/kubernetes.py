"""A pod per session, through the API server itself: plain HTTP and the exec WebSocket, no client library.

Each pod gets a NetworkPolicy that allows nothing; the cluster's network plugin decides whether policies are enforced.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Sequence
from typing import Any, ClassVar

import aiohttp

from asyncrl.errors import ConfigError, InfrastructureError
from asyncrl.extensions.remote_sandboxes.cluster import Cluster, find_cluster
from asyncrl.extensions.remote_sandboxes.container import INIT, Attachment, ContainerSandbox, Take, in_shell
from asyncrl.extensions.remote_sandboxes.docker import DEFAULT_IMAGE, IMAGE_VARIABLE
from asyncrl.sandbox.protocol import WORKDIR, Guarantee

STDIN, STDOUT, STDERR, STATUS = 0, 1, 2, 3
SUBPROTOCOL = "v4.channel.k8s.io"
REQUEST_TIMEOUT_S = 60.0
POD_TIMEOUT_S = 90.0
POD_LIFETIME_S = 6 * 3600
"""The cluster ends a pod after this long, in case asyncrl has died."""
USER = 20_000


class PodAttachment(Attachment):
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), 65536):
            await self._socket.send_bytes(bytes([STDIN]) + data[start : start + 65536])

    async def pump(self, take: Take) -> int:
        async for message in self._socket:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel in (STDOUT, STDERR):
                take(channel == STDERR, data)
            elif channel == STATUS:
                return exit_status(json.loads(data))
        raise InfrastructureError("kubernetes: the connection to a program ended before the program")

    async def close(self) -> None:
        await self._socket.close()


def exit_status(status: dict[str, Any]) -> int:
    """From the Status object that ends an exec. Raises `InfrastructureError` when there never was a program."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    message = str(status.get("message", status))
    if "not found" in message or "no such file" in message.lower():
        return 127
    raise InfrastructureError(f"kubernetes exec: {message}")


class KubernetesSandbox(ContainerSandbox):
    name: ClassVar[str] = "kubernetes"
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset(Guarantee) - {
        Guarantee.HOST_KERNEL,
        Guarantee.FRESH_UID,
        Guarantee.KERNEL_SURFACE,
    }
    takes_mounts: ClassVar[bool] = False
    # The exec protocol of version 4, the one every server speaks, cannot end stdin.
    half_close: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._session: aiohttp.ClientSession | None = None
        self._cluster: Cluster | None = None
        self._pod = f"asyncrl-sandbox-{secrets.token_hex(6)}"

    def _pod_body(self) -> dict[str, Any]:
        limits = self.limits
        third = f"{limits.disk_bytes // 3}"
        folders = {"work": WORKDIR, "tmp": "/tmp", "shm": "/dev/shm"}
        memory = {"medium": "Memory", "sizeLimit": third}
        container = {
            "name": "box",
            "image": self.spec.image or os.environ.get(IMAGE_VARIABLE, DEFAULT_IMAGE),
            "command": INIT,
            "resources": {"limits": {"cpu": "1", "memory": str(limits.memory_bytes + limits.disk_bytes)}},
            "securityContext": {
                "runAsUser": USER,
                "runAsGroup": USER,
                "runAsNonRoot": True,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": [{"name": name, "mountPath": path} for name, path in folders.items()],
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self._pod, "labels": {"asyncrl-sandbox": self._pod}},
            "spec": {
                "restartPolicy": "Never",
                "activeDeadlineSeconds": POD_LIFETIME_S,
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": {"fsGroup": USER},
                "containers": [container],
                "volumes": [{"name": name, "emptyDir": memory} for name in folders],
            },
        }

    def _policy_body(self) -> dict[str, Any]:
        return {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": self._pod},
            "spec": {
                "podSelector": {"matchLabels": {"asyncrl-sandbox": self._pod}},
                "policyTypes": ["Ingress", "Egress"],
            },
        }

    async def _call(self, method: str, path: str, body: Any = None, accept: tuple[int, ...] = ()) -> Any:
        assert self._session is not None and self._cluster is not None
        try:
            async with self._session.request(method, self._cluster.url + path, json=body) as reply:
                text = await reply.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"kubernetes at {self._cluster.url}: {error!r}") from error
        if reply.status >= 400 and reply.status not in accept:
            raise InfrastructureError(f"kubernetes: {method} {path}: {reply.status} {text[:500]}")
        return json.loads(text) if text.startswith("{") else None

    async def _create(self) -> None:
        self._cluster = find_cluster()
        self._session = aiohttp.ClientSession(
            headers=self._cluster.headers,
            connector=aiohttp.TCPConnector(ssl=self._cluster.tls),
            timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S),
        )
        # The policy first: the pod must not exist without it.
        namespace = self._cluster.namespace
        await self._call(
            "POST", f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", self._policy_body()
        )
        await self._call("POST", f"/api/v1/namespaces/{namespace}/pods", self._pod_body())
        async with asyncio.timeout(POD_TIMEOUT_S):
            while True:
                pod = await self._call("GET", f"/api/v1/namespaces/{namespace}/pods/{self._pod}")
                phase = pod["status"].get("phase")
                if phase == "Running":
                    return
                if phase in ("Failed", "Succeeded"):
                    raise ConfigError(
                        f"kubernetes: pod {self._pod} is {phase}: {pod['status'].get('message', '')}"
                    )
                await asyncio.sleep(0.2)

    async def _destroy(self) -> None:
        if self._session is None or self._cluster is None:
            return
        namespace = self._cluster.namespace
        pod = f"/api/v1/namespaces/{namespace}/pods/{self._pod}?gracePeriodSeconds=0"
        policy = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{self._pod}"
        try:
            await self._call("DELETE", pod, accept=(404,))
            await self._call("DELETE", policy, accept=(404,))
        finally:
            await self._session.close()

    async def _attach(
        self, argv: Sequence[str], env: dict[str, str], cwd: str, stdin: bool, timeout_s: float | None
    ) -> Attachment:
        assert self._session is not None and self._cluster is not None
        path = f"/api/v1/namespaces/{self._cluster.namespace}/pods/{self._pod}/exec"
        query = [("command", part) for part in in_shell(argv, env, cwd)]
        query += [("container", "box"), ("stdin", str(stdin).lower()), ("stdout", "true"), ("stderr", "true")]
        try:
            socket = await asyncio.wait_for(
                self._session.ws_connect(
                    self._cluster.url + path,
                    params=query,
                    protocols=(SUBPROTOCOL,),
                    max_msg_size=0,
                ),
                REQUEST_TIMEOUT_S,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise InfrastructureError(f"kubernetes exec: {error!r}") from error
        return PodAttachment(socket)
