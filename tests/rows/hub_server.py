"""A stand-in for a Hugging Face hub: a server on this machine that speaks as much of its protocol as data sets need.

It has data sets in folders, one for each revision, some of which only the bearer of a token may read. It can be told to
fail for a while, as a busy hub does.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_standin"
SETS = re.compile(r"/api/datasets/(?P<repo>[\w.-]+/[\w.-]+)(?P<rest>/.*)?")
FILE = re.compile(r"/datasets/(?P<repo>[\w.-]+/[\w.-]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class Hub:
    """Serves `folder/ORG/NAME/REVISION/FILES`; the revision "main" is there where none is asked for."""

    def __init__(self, folder: Path, private: tuple[str, ...] = ()) -> None:
        self.folder, self.private = folder, private
        self.fail_next = 0
        """So many of the next requests are answered by 503."""
        self.requests: list[str] = []
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def revision(self, repo: str, name: str) -> Path | None:
        """Return the folder of a revision: by its name, or by its commit."""
        found = [
            p for p in sorted((self.folder / repo).glob("*")) if name in (p.name, self.commit(repo, p.name))
        ]
        return found[0] if found else None

    @staticmethod
    def commit(repo: str, revision: str) -> str:
        """Return what stands for the commit of a revision: 40 hexadecimal digits."""
        return hashlib.sha1(f"{repo}@{revision}".encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, address = self.server_hub, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub.requests.append(f"{self.command} {self.path}")
        if hub.fail_next > 0:
            hub.fail_next -= 1
            return self._send(503, b"busy")
        path = unquote(address.path)
        found = SETS.fullmatch(path) or FILE.fullmatch(path)
        if found is None:
            return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        repo = found["repo"]
        known = (hub.folder / repo).is_dir()
        if not known or (repo in hub.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if FILE.fullmatch(path):
            return self._file(repo, found["revision"], found["path"])
        return self._api(repo, found["rest"] or "", parse_qs(address.query), body)

    def _api(self, repo: str, rest: str, query: dict[str, list[str]], body: bytes) -> None:
        kind, _, where = rest.lstrip("/").partition("/")
        revision, _, below = where.partition("/")
        folder = self.server_hub.revision(repo, revision or "main")
        if folder is None:
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = [str(p.relative_to(folder)) for p in sorted(folder.rglob("*")) if p.is_file()]
        if kind in ("", "revision"):
            sha = self.server_hub.commit(repo, folder.name)
            told = {
                "id": repo,
                "sha": sha,
                "private": repo in self.server_hub.private,
                "tags": [],
                "downloads": 0,
            }
            return self._json({**told, "siblings": [{"rfilename": name} for name in files]})
        if kind == "tree":
            names = [name for name in files if name.startswith(below)]
            folders = sorted({str(Path(name).parent) for name in names} - {"."})
            if below and not names:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return self._json([_folder(name) for name in folders] + [_entry(folder, name) for name in names])
        if kind == "paths-info":
            asked = (
                json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode()).get("paths", [])
            )
            return self._json([_entry(folder, name) for name in asked if name in files])
        return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})

    def _file(self, repo: str, revision: str, name: str) -> None:
        folder = self.server_hub.revision(repo, revision)
        if folder is None:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        sha = self.server_hub.commit(repo, folder.name)
        if not (folder / name).is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        data = (folder / name).read_bytes()
        etag = f'"{hashlib.sha1(data).hexdigest()}"'
        return self._send(200, data, {"ETag": etag, "X-Repo-Commit": sha, "Accept-Ranges": "bytes"})

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _entry(folder: Path, name: str) -> dict[str, object]:
    data = (folder / name).read_bytes()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


def _folder(name: str) -> dict[str, object]:
    return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
