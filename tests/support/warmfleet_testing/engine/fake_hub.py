"""A Hugging Face hub on a local port: one repository from a folder, and how a hub may misbehave."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = "acme/tiny"
REVISION = "0123456789abcdef0123456789abcdef01234567"
LFS_SUFFIX = ".safetensors"


@dataclass
class Seen:
    """One request that arrived."""

    path: str
    token: str
    range: str
    status: int = 0
    sent_bytes: int = 0


@dataclass
class FakeHub:
    """What the hub holds and how it behaves; tests change it while it runs."""

    files: dict[str, bytes]
    token: str = ""
    """Needed to read the repository; empty = public."""
    gated: bool = False
    """With any token: 403."""
    revision: str = REVISION
    branches: dict[str, str] = field(default_factory=dict)
    """Commits of branches and tags; only that of `revision` has files."""
    redirects: dict[str, str] = field(default_factory=dict)
    """Locations by path."""
    gzipped: bytes = b""
    """Sent for questions about a revision, as a body in gzip, also to a client that accepts none."""
    silent: threading.Event | None = None
    """Until it is set, questions about a revision get no answer."""
    cut_after_bytes: int = 0
    """Break each answer with weights off after this many bytes; 0 = do not."""
    cuts: int = 1_000_000
    """How often that happens."""
    ignore_ranges: bool = False
    failures: list[int] = field(default_factory=list)
    """Statuses of the next answers."""
    failures_after_cut: list[int] = field(default_factory=list)
    """Statuses of the answers that follow on one that was broken off."""
    content_network: str = ""
    """Base URL that weights are redirected to."""
    falsified: dict[str, bytes] = field(default_factory=dict)
    """Sent instead of what is listed."""
    extra_siblings: list[dict[str, object]] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def commit(self, revision: str) -> str | None:
        """Of a commit, branch or tag; None: there is none."""
        return revision if revision == self.revision else self.branches.get(revision)

    def listing(self, commit: str) -> dict[str, object]:
        return {"sha": commit, "siblings": [*map(self._sibling, self.files), *self.extra_siblings]}

    def questions(self) -> list[Seen]:
        """Requests about a revision, oldest first."""
        return [seen for seen in self.seen if seen.path.startswith("/api/models/")]

    def downloads(self, name: str) -> list[Seen]:
        """Requests for one file, oldest first."""
        return [seen for seen in self.seen if seen.path.endswith(f"/{name}")]

    def _sibling(self, name: str) -> dict[str, object]:
        content = self.files[name]
        blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
        sibling: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": blob}
        if name.endswith(LFS_SUFFIX):
            digest = hashlib.sha256(content).hexdigest()
            sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 134}
        return sibling


@contextmanager
def running_hub(folder: Path | None = None) -> Iterator[FakeHub]:
    """A hub that serves the files of `folder` as the repository `acme/tiny`."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()} if folder else {}
    hub = FakeHub(files)

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.seen = Seen(self.path, self.headers["authorization"] or "", self.headers["range"] or "")
        self.hub.seen.append(self.seen)
        path = unquote(urlsplit(self.path).path)
        if self.hub.failures:
            self._answer(self.hub.failures.pop(0), b"{}", {"retry-after": "0"})
            return
        if path in self.hub.redirects:
            self._answer(307, b"", {"location": self.hub.redirects[path]})
            return
        refusal = self._refusal(path)
        if refusal is not None:
            status, code = refusal
            self._answer(status, b"{}", {"x-error-code": code} if code else {})
        elif path.startswith("/api/models/"):
            self._about_revision(path)
        else:
            self._file(path.rpartition("/")[2])

    def _refusal(self, path: str) -> tuple[int, str] | None:
        hub = self.hub
        # A content network knows no repository and wants no token.
        if path.startswith("/blob/"):
            return None
        if hub.token and self.seen.token != f"Bearer {hub.token}":
            return 401, "RepoNotFound"
        if hub.gated:
            return 403, "GatedRepo"
        if f"/{REPOSITORY}/" not in path:
            return 404, "RepoNotFound"
        known = hub.commit(path.partition("/revision/")[2]) or hub.revision in path
        return None if known else (404, "RevisionNotFound")

    def _about_revision(self, path: str) -> None:
        hub = self.hub
        if hub.silent is not None:
            hub.silent.wait(30)
        commit = hub.commit(path.partition("/revision/")[2])
        assert commit is not None, "`_refusal` knows no such revision"
        if hub.gzipped:
            self._answer(200, hub.gzipped, {"content-encoding": "gzip"})
            return
        self._answer(200, json.dumps(hub.listing(commit)).encode(), {"content-type": "application/json"})

    def _file(self, name: str) -> None:
        hub = self.hub
        content = hub.falsified.get(name, hub.files.get(name))
        if content is None:
            self._answer(404, b"", {"x-error-code": "EntryNotFound"})
        elif name.endswith(LFS_SUFFIX) and hub.content_network:
            self._answer(302, b"", {"location": f"{hub.content_network}/blob/{name}"})
        else:
            first = 0
            headers = {}
            if self.seen.range and not hub.ignore_ranges:
                first = int(self.seen.range.removeprefix("bytes=").removesuffix("-"))
                headers["content-range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            cut = None
            if name.endswith(LFS_SUFFIX) and hub.cut_after_bytes and hub.cuts > 0:
                hub.cuts -= 1
                cut = hub.cut_after_bytes
                hub.failures += hub.failures_after_cut
            self._answer(206 if headers else 200, content[first:], headers, cut=cut)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None
    ) -> None:
        self.seen.status = status
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        sent = body if cut is None else body[:cut]
        self.seen.sent_bytes = len(sent)  # before: a client may check it as soon as it has received the body
        self.wfile.write(sent)
        if len(sent) < len(body):
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Requests are in `seen`."""
