"""A small Hugging Face Hub on loopback: as much of its interface as `push` uses, with faults to order.

Large files go up in parts (LFS multipart), small ones within the commit, as at the Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_testTokenThatNobodyMayRead"
PART_BYTES = 1000
Answer = tuple[int, Any]


class Hub:
    """Repositories in memory. `faults` maps a route to (status, headers); `lost` is a file that vanishes on arrival."""

    def __init__(self) -> None:
        self.url = ""
        self.private: dict[str, bool] = {}
        self.files: dict[str, bytes] = {}
        self.messages: list[str] = []
        self.faults: dict[str, tuple[int, dict[str, str]]] = {}
        self.lost: str | None = None
        self._parts: dict[str, bytes] = {}
        self._stored: dict[str, bytes] = {}

    def whoami(self, body: Any) -> Answer:
        return 200, {"name": "tester", "type": "user", "orgs": []}

    def create(self, body: Any) -> Answer:
        repo = f"{body['organization']}/{body['name']}"
        status = 409 if repo in self.private else 200
        self.private.setdefault(repo, body.get("visibility") == "private")
        return status, {"url": f"{self.url}/{repo}"}

    def info(self, body: Any, repo: str) -> Answer:
        if repo not in self.private:
            return 404, {"error": "Repository not found"}
        return 200, {"id": repo, "private": self.private[repo], "siblings": []}

    def preupload(self, body: Any) -> Answer:
        def kind(entry: Any) -> str:
            return "lfs" if entry["path"].endswith((".gguf", ".safetensors")) else "regular"

        modes = [{"path": e["path"], "uploadMode": kind(e), "shouldIgnore": False, "oid": None} for e in body["files"]]
        return 200, {"files": modes}

    def batch(self, body: Any) -> Answer:
        def upload(entry: Any) -> dict[str, Any]:
            count = -(-entry["size"] // PART_BYTES)
            parts = {str(n): f"{self.url}/part/{entry['oid']}/{n:04}" for n in range(1, count + 1)}
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

    def commit(self, body: bytes) -> Answer:
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                self.messages.append(value["summary"])
            elif line["key"] == "file":
                self.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.files[value["path"]] = self._stored[value["oid"]]
        self.files.pop(self.lost or "", None)
        return 200, {"commitUrl": f"{self.url}/o/n/commit/{'a' * 40}", "commitOid": "a" * 40}

    def tree(self, body: Any) -> Answer:
        def entry(path: str, data: bytes) -> dict[str, Any]:
            digest = hashlib.sha256(data).hexdigest()
            large = path.endswith((".gguf", ".safetensors"))
            lfs = {"lfs": {"oid": digest, "size": len(data), "pointerSize": 130}} if large else {}
            return {"type": "file", "path": path, "size": len(data), "oid": digest[:40], **lfs}

        return 200, [entry(path, data) for path, data in self.files.items()]


ROUTES = {
    r"GET /api/whoami-v2": Hub.whoami,
    r"POST /api/repos/create": Hub.create,
    r"GET /api/models/([^/]+/[^/]+)": Hub.info,
    r"POST /api/models/[^/]+/[^/]+/preupload/main": Hub.preupload,
    r"POST /[^/]+/[^/]+\.git/info/lfs/objects/batch": Hub.batch,
    r"PUT /part/(.+)": Hub.part,
    r"POST /whole/(.+)": Hub.whole,
    r"POST /api/models/[^/]+/[^/]+/commit/main": Hub.commit,
    r"GET /api/models/[^/]+/[^/]+/tree/a+": Hub.tree,
}


@contextmanager
def running_hub() -> Iterator[Hub]:
    """A hub that listens on a port of this machine until the block ends."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = f"{self.command} {self.path.split('?')[0]}"
            found, route = next((m, r) for pattern, r in ROUTES.items() if (m := re.fullmatch(pattern, asked)))
            headers = {"ETag": "x"}
            if route not in (Hub.part, Hub.whole) and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = 401, {"error": "Invalid credentials"}
            elif route.__name__ in hub.faults:
                status, headers = hub.faults[route.__name__]
                answer = {"error": f"no, {self.headers.get('Authorization')}"}
            else:
                raw = route in (Hub.part, Hub.commit)
                status, answer = route(hub, body if raw else json.loads(body or b"null"), *found.groups())
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
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
