"""An image registry of one image on the loopback, so that pulling is tested where no other registry can be reached.

From:  files for the image's only layer.
To:    the reading half of the OCI distribution protocol over plain HTTP, which engines accept from 127.0.0.0/8.
Holds: the engine checks every digest itself; `refuse` makes it answer like one that wants a password.
"""

import gzip
import hashlib
import http.server
import json
import platform
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from gyre_web.bench._small_image import pack

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Registry:
    port: int
    manifest: bytes
    blobs: dict[str, bytes]
    refuse: bool = False
    asked: list[str] = field(default_factory=list)

    @property
    def digest(self) -> str:
        return digest_of(self.manifest)

    def name(self, repository: str = "team/tools", tag: str = "1") -> str:
        return f"127.0.0.1:{self.port}/{repository}:{tag}"


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_image(files: dict[str, str]) -> tuple[bytes, dict[str, bytes]]:
    """(manifest, blobs by digest)."""
    tar = pack(files)
    layer = gzip.compress(tar, mtime=0)
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), "amd64"), "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(tar)]},
        }
    ).encode()  # fmt: skip
    parts = [(CONFIG, config), (LAYER, layer)]
    described = [{"mediaType": kind, "size": len(data), "digest": digest_of(data)} for kind, data in parts]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described[0], "layers": described[1:]}
    return json.dumps(manifest).encode(), {digest_of(data): data for _, data in parts}


@contextmanager
def serve(files: dict[str, str]) -> Iterator[Registry]:
    manifest, blobs = make_image(files)
    registry = Registry(port=0, manifest=manifest, blobs=blobs)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            registry.asked.append(self.path)
            kind, body, status = answer(registry, self.path)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if status == 200 and kind != "application/json":
                self.send_header("Docker-Content-Digest", digest_of(body))
            if status == 401:
                self.send_header("WWW-Authenticate", 'Basic realm="tests"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answer(registry: Registry, path: str) -> tuple[str, bytes, int]:
    """(content type, body, status)."""
    if registry.refuse:
        return "application/json", fault("UNAUTHORIZED", "authentication required"), 401
    if path == "/v2/":
        return "application/json", b"{}", 200
    repository, _, reference = path.removeprefix("/v2/").rpartition("/")
    if repository == "team/tools/manifests" and reference in ("1", registry.digest):
        return MANIFEST, registry.manifest, 200
    if repository == "team/tools/blobs" and reference in registry.blobs:
        return "application/octet-stream", registry.blobs[reference], 200
    return "application/json", fault("MANIFEST_UNKNOWN", "manifest unknown"), 404


def fault(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()
