"""A small Hugging Face Hub on loopback: as much of its interface as the toolkit uses through huggingface_hub, with faults to order.

Large files go up in parts (LFS multipart), small ones within the commit, as at the Hub. It checks what it is sent: hashes, the
token, who may write where, and the metadata of a model card.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

TOKEN = "hf_testTokenThatNobodyMayRead"
SIGNED = "X-Amz-Credential=SECRET&X-Amz-Signature=SECRET"
"""In the address of each part: who has it may write there."""
PART_BYTES = 1000
Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]
Files = dict[str, bytes]


@dataclass
class Repo:
    """A repository: its branches and commits are whole trees."""

    private: bool = True
    branches: dict[str, Files] = field(default_factory=lambda: {"main": {}})
    commits: dict[str, Files] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    card: dict[str, Any] | None = None
    writable: bool = True
    gated: bool = False
    """Hidden even from those who may see the page."""
    asks_for_terms: bool = False
    """As gated models of the Hub are: everybody sees the page, nobody gets the files."""

    @property
    def files(self) -> Files:
        return self.branches["main"]


class Hub:
    """Repositories in memory. `faults` maps a route to (status, headers); `lost` is a file that vanishes on arrival."""

    def __init__(self) -> None:
        self.url = ""
        self.repos: dict[str, Repo] = {}
        self.who: dict[str, Any] = {"type": "user", "name": "tester", "orgs": [{"name": "org", "roleInOrg": "write"}]}
        self.token: dict[str, Any] = {"displayName": "test", "role": "write"}
        self.faults: dict[str, tuple[int, dict[str, str]]] = {}
        self.lost: str | None = None
        self.open = threading.Event()
        """Cleared, commits wait."""
        self.open.set()
        self.asked: list[str] = []
        """The routes of all requests."""
        self._parts: dict[str, bytes] = {}
        self._stored: dict[str, bytes] = {}

    @property
    def private(self) -> dict[str, bool]:
        return {name: repo.private for name, repo in self.repos.items()}

    def whoami(self, body: Any) -> Answer:
        return 200, {**self.who, "auth": {"type": "access_token", "accessToken": self.token}}

    def create(self, body: Any) -> Answer:
        name = f"{body['organization']}/{body['name']}"
        if name in self.repos:
            return 409, {"url": f"{self.url}/{name}", "error": "You already created this model repo"}
        self.repos[name] = Repo(private=body.get("visibility") == "private")
        return 200, {"url": f"{self.url}/{name}"}

    def info(self, body: Any, name: str, revision: str = "main") -> Answer:
        repo = self.repos.get(name)
        if repo is None:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        if repo.gated:
            return 403, {"error": "Access to this model is restricted"}, {"X-Error-Code": "GatedRepo"}
        card = {"cardData": repo.card} if repo.card is not None else {}
        files = [{"rfilename": path, "size": len(data)} for path, data in repo.files.items()]
        facts = {"private": repo.private, "gated": "manual" if repo.asks_for_terms else False, "siblings": files}
        return 200, {"id": name, "sha": _commit(repo.files), **facts, **card}

    def may_read(self, body: Any, name: str) -> Answer:
        refused = {"error": "Access to this model is restricted"}, {"X-Error-Code": "GatedRepo"}
        return (403, *refused) if self.repos[name].asks_for_terms else (200, {})

    def may_write(self, body: Any, name: str) -> Answer:
        return (200, {}) if self.repos[name].writable else (403, {"error": "Forbidden"})

    def branch(self, body: Any, name: str, branch: str) -> Answer:
        repo = self.repos[name]
        if branch in repo.branches:
            return 409, {"error": "Reference already exists"}
        repo.branches[branch] = dict(repo.files)
        return 200, {}

    def validate(self, body: Any) -> Answer:
        """As the Hub: a block of YAML at the beginning, with a licence that is one word."""
        from ruamel.yaml import YAML

        found = re.match(r"---\n(.*?)\n---\n", body["content"], re.DOTALL)
        data = YAML(typ="safe").load(found[1]) if found else None
        good = isinstance(data, dict) and re.fullmatch(r"[a-z0-9.-]+", str(data.get("license", "")))
        return (200, {"warnings": []}) if good else (400, {"errors": [{"message": "bad metadata"}], "warnings": []})

    def preupload(self, body: Any, name: str, revision: str) -> Answer:
        def mode(entry: Any) -> str:
            large = entry["path"].endswith((".gguf", ".safetensors", ".pt", ".pth")) or entry["size"] > 10_000_000
            return "lfs" if large else "regular"

        there = self.repos[name].branches[unquote(revision)]
        oids = {path: _blob(data) for path, data in there.items() if not _large(path)}
        modes = [
            {"path": entry["path"], "uploadMode": mode(entry), "shouldIgnore": False, "oid": oids.get(entry["path"])}
            for entry in body["files"]
        ]
        return 200, {"files": modes}

    def batch(self, body: Any) -> Answer:
        def upload(entry: Any) -> dict[str, Any]:
            if entry["oid"] in self._stored:
                return entry
            count = -(-entry["size"] // PART_BYTES)
            parts = {str(n): f"{self.url}/part/{entry['oid']}/{n:06}?{SIGNED}" for n in range(1, count + 1)}
            action = {"href": f"{self.url}/whole/{entry['oid']}", "header": {"chunk_size": str(PART_BYTES), **parts}}
            return entry | {"actions": {"upload": action}}

        return 200, {"transfer": "multipart", "objects": [upload(entry) for entry in body["objects"]]}

    def part(self, body: bytes, name: str) -> Answer:
        self._parts[name] = body
        return 200, {}

    def whole(self, body: Any, oid: str) -> Answer:
        data = b"".join(self._parts[name] for name in sorted(self._parts) if name.startswith(oid))
        assert hashlib.sha256(data).hexdigest() == oid
        self._stored[oid] = data
        return 200, {}

    def commit(self, body: bytes, name: str, revision: str) -> Answer:
        self.open.wait(timeout=60)
        repo = self.repos[name]
        tree = dict(repo.branches[unquote(revision)])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repo.messages.append(value["summary"])
            elif line["key"] == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                tree[value["path"]] = self._stored[value["oid"]]
            elif line["key"] == "deletedFolder":
                tree = {path: data for path, data in tree.items() if not path.startswith(value["path"])}
        tree.pop(self.lost or "", None)
        repo.branches[unquote(revision)] = repo.commits[_commit(tree)] = tree
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{_commit(tree)}", "commitOid": _commit(tree)}

    def tree(self, body: Any, name: str, revision: str) -> Answer:
        def entry(path: str, data: bytes) -> dict[str, Any]:
            pointer = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            lfs = {"lfs": pointer} if _large(path) else {}
            return {"type": "file", "path": path, "size": len(data), "oid": _blob(data), **lfs}

        repo = self.repos[name]
        tree = repo.branches.get(unquote(revision)) or repo.commits.get(revision) or {}
        return 200, [entry(path, data) for path, data in tree.items()]

    def nowhere(self, body: Any, asked: str) -> Answer:
        """What else the client asks on its own: a list of names for its user agent."""
        return 404, {}


def _large(path: str) -> bool:
    return path.endswith((".gguf", ".safetensors", ".pt", ".pth"))


def _blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _commit(tree: Files) -> str:
    return hashlib.sha1(repr(sorted((path, _blob(data)) for path, data in tree.items())).encode()).hexdigest()


_NAME = "([^/]+/[^/]+)"
ROUTES = {
    r"GET /api/whoami-v2": Hub.whoami,
    r"POST /api/repos/create": Hub.create,
    r"POST /api/validate-yaml": Hub.validate,
    rf"GET /api/(?:models|datasets)/{_NAME}": Hub.info,
    rf"GET /api/models/{_NAME}/revision/([^/]+)": Hub.info,
    rf"GET /api/models/{_NAME}/auth-check": Hub.may_read,
    rf"GET /api/models/{_NAME}/auth-check/write": Hub.may_write,
    rf"POST /api/models/{_NAME}/branch/([^/]+)": Hub.branch,
    rf"POST /api/models/{_NAME}/preupload/([^/]+)": Hub.preupload,
    r"POST /[^/]+/[^/]+\.git/info/lfs/objects/batch": Hub.batch,
    r"PUT /part/(.+)": Hub.part,
    r"POST /whole/(.+)": Hub.whole,
    rf"POST /api/models/{_NAME}/commit/([^/]+)": Hub.commit,
    rf"GET /api/models/{_NAME}/tree/([^/]+)": Hub.tree,
}


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that listens on a port of this machine until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = f"{self.command} {self.path.split('?')[0]}"
            routes = ((m, r) for pattern, r in ROUTES.items() if (m := re.fullmatch(pattern, asked)))
            found, route = next(routes, (re.match("(.*)", asked), Hub.nowhere))
            assert found is not None
            hub.asked.append(route.__name__)
            headers = {"ETag": "x"}
            anonymous = self.headers.get("Authorization") is None and route in (Hub.info, Hub.may_read)
            free = route in (Hub.part, Hub.whole) or anonymous
            if not free and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = 401, {"error": "Invalid credentials"}
            elif route.__name__ in hub.faults:
                status, headers = hub.faults[route.__name__]
                answer = {"error": f"no, {self.headers.get('Authorization')}"}
            else:
                raw = route in (Hub.part, Hub.commit)
                status, answer, *more = route(hub, body if raw else json.loads(body or b"null"), *found.groups())
                headers |= more[0] if more else {}
            data = json.dumps(answer).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = handle_any

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        hub.open.set()
        server.shutdown()
        server.server_close()


@contextmanager
def logged_in_to(url: str) -> Iterator[None]:
    """huggingface_hub speaks with the hub at this address, in this process, under a token that may write."""
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    close_session()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(constants, "ENDPOINT", url)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        # xet is spoken by compiled code with a server of its own; the stand-in speaks LFS.
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setenv("HF_TOKEN", TOKEN)
        patch.setenv("NO_PROXY", "*")
        yield
    close_session()
