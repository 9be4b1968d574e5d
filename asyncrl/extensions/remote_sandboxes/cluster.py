"""Address and credentials of a Kubernetes cluster: an in-cluster account, or a kubeconfig."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncrl.errors import ConfigError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True)
class Cluster:
    url: str
    namespace: str
    headers: dict[str, str]
    tls: ssl.SSLContext | bool
    """True for the system's certificates; ignored for http."""


def find_cluster() -> Cluster:
    """Raises `ConfigError` if there is none, naming what was searched for."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST")
    if host and (ACCOUNT / "token").exists():
        headers = {"Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}"}
        url = f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
        context = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
        return Cluster(url, (ACCOUNT / "namespace").read_text().strip(), headers, context)
    path = Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser()
    if not path.exists():
        raise ConfigError(
            f"no Kubernetes cluster: not running in one, and {path} (KUBECONFIG) does not exist"
        )
    return read_kubeconfig(path)


def read_kubeconfig(path: Path) -> Cluster:
    """Return the current context of a kubeconfig with a token or a client certificate. Raises `ConfigError`."""
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("reading a kubeconfig needs 'pip install pyyaml'") from error
    try:
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        if "exec" in user or "auth-provider" in user:
            raise ConfigError(
                f"{path}: credential plugins are not supported; use a token or a client certificate"
            )
        headers = {"Authorization": f"Bearer {user['token']}"} if "token" in user else {}
        return Cluster(
            cluster["server"], context.get("namespace", "default"), headers, _tls(cluster, user, path)
        )
    except (KeyError, TypeError, StopIteration, yaml.YAMLError, OSError) as error:
        raise ConfigError(f"{path} is not a complete kubeconfig: {error!r}") from error


def _named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(item for item in items if item["name"] == name)


def _tls(cluster: dict[str, Any], user: dict[str, Any], path: Path) -> ssl.SSLContext | bool:
    if not cluster["server"].startswith("https"):
        return True
    authority = base64.b64decode(cluster.get("certificate-authority-data", "")).decode() or None
    context = ssl.create_default_context(cafile=cluster.get("certificate-authority"), cadata=authority)
    if cluster.get("insecure-skip-tls-verify"):
        raise ConfigError(f"{path}: insecure-skip-tls-verify is not supported; give certificate-authority")
    if "client-certificate" in user:
        context.load_cert_chain(user["client-certificate"], user["client-key"])
    elif "client-certificate-data" in user:
        # The library reads key pairs from files only.
        with tempfile.NamedTemporaryFile(delete=False) as file:
            file.write(base64.b64decode(user["client-certificate-data"]))
            file.write(b"\n" + base64.b64decode(user["client-key-data"]))
        try:
            context.load_cert_chain(file.name)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(file.name)
    return context
