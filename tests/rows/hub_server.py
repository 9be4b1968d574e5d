"""A stand-in for a Hugging Face hub: a server on this machine that speaks as much of its protocol as data sets and
uploads of models need.

It has data sets in folders, one for each revision, some of which only the bearer of a token may read. Models are
uploaded by the bearer of the token alone, as files inside a commit or, where they are large, before it by Git LFS. It
can be told to fail for a while, as a busy hub does.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_standin"
SETS = re.compile(r"/api/datasets/(?P<repo>[\w.-]+/[\w.-]+)(?P<rest>/.*)?")
MODEL = re.compile(r"/api/models/(?P<repo>[\w.-]+/[\w.-]+)/(?P<kind>preupload|commit)/main")
LFS = re.compile(r"/(?P<repo>[\w.-]+/[\w.-]+)\.git/info/lfs/objects/batch")
LARGE = 1024
"""Bytes from which on a file goes by Git LFS."""
FILE = re.compile(r"/datasets/(?P<repo>[\w.-]+/[\w.-]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


class Hub:
    """Serves `folder/ORG/NAME/REVISION/FILES`; the revision "main" is there where none is asked for."""

    def __init__(self, folder: Path, private: tuple[str, ...] = ()) -> None:
        self.folder, self.private = folder, private
        self.fail_next = 0
        """So many of the next requests are answered by 503."""
        self.requests: list[str] = []
        self.models: dict[str, dict[str, bytes]] = {}
        """Files of each model's repository."""
        self.private_models: set[str] = set()
        self.commits: list[str] = []
        """Messages, in order."""
        self.objects: dict[str, bytes] = {}
        """Large files by checksum."""
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

    def do_PUT(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub, address = self.server_hub, urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        hub.requests.append(f"{self.command} {self.path}")
        if hub.fail_next > 0:
            hub.fail_next -= 1
            return self._send(503, b"busy")
        path = unquote(address.path)
        if self.command in ("POST", "PUT") and not path.startswith("/api/datasets/"):
            return self._upload(path, body)
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

    def _upload(self, path: str, body: bytes) -> None:
        hub = self.server_hub
        if path.startswith("/objects/"):
            oid = path.rpartition("/")[2]
            if hashlib.sha256(body).hexdigest() != oid:
                return self._send(400, b"{}")
            hub.objects[oid] = body
            return self._send(200, b"")
        if path == "/api/validate-yaml":
            return self._json({"errors": [], "warnings": []})
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, b"{}", {"X-Error-Message": "Invalid username or password."})
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in hub.models:
                return self._json({"url": f"{hub.url}/{name}"}, 409)
            hub.models[name] = {}
            hub.private_models |= {name} if asked.get("visibility") == "private" else set()
            return self._json({"url": f"{hub.url}/{name}"})
        if LFS.fullmatch(path):
            asked = json.loads(body)["objects"]
            found = [
                one | {"actions": {"upload": {"href": f"{hub.url}/objects/{one['oid']}"}}} for one in asked
            ]
            return self._json({"transfer": "basic", "objects": found})
        found = MODEL.fullmatch(path)
        if found is None or found["repo"] not in hub.models:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if found["kind"] == "preupload":
            asked = json.loads(body)["files"]
            return self._json({"files": [_upload_mode(one) for one in asked]})
        self._commit(found["repo"], [json.loads(line) for line in body.splitlines()])

    def _commit(self, repo: str, lines: list[dict]) -> None:
        hub = self.server_hub
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                hub.commits.append(value["summary"])
            elif line["key"] == "file":
                hub.models[repo][value["path"]] = base64.b64decode(value["content"])
            else:
                hub.models[repo][value["path"]] = hub.objects[value["oid"]]
        oid = hub.commit(repo, str(len(hub.commits)))
        self._json({"commitUrl": f"{hub.url}/{repo}/commit/{oid}", "commitOid": oid})

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

    def _json(self, value: object, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


def _upload_mode(file: dict) -> dict[str, object]:
    mode = "lfs" if file["size"] >= LARGE else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}


def _entry(folder: Path, name: str) -> dict[str, object]:
    data = (folder / name).read_bytes()
    return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}


def _folder(name: str) -> dict[str, object]:
    return {"type": "directory", "path": name, "oid": hashlib.sha1(name.encode()).hexdigest()}
