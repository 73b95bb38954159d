"""A package index for tests: it wants a password, and notes what it is asked."""

from __future__ import annotations

import base64
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PASSWORD = "correct-horse"


def wheel(name: str, version: str = "1.0", files: Mapping[str, str] | None = None) -> bytes:
    """Return a wheel with one module and perhaps more files, made by hand: building one would need an index."""
    info, data = f"{name}-{version}.dist-info", io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in {f"{name}.py": "ANSWER = 42\n", **(files or {})}.items():
            archive.writestr(path, text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return data.getvalue()


class Index:
    """An index on this machine's loopback interface.

    Attributes:
        pages: What it has, by path: the content type and the body.
        asked: Each request that had the password: method and path.
        refused: Each that had not.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.pages: dict[str, tuple[str, bytes]] = {}
        self.asked: list[str] = []
        self.refused: list[str] = []
        name = "tiny_demo-1.0-py3-none-any.whl"
        self.pages["/simple/tiny-demo/"] = ("text/html", f'<a href="../../files/{name}">{name}</a>'.encode())
        self.pages[f"/files/{name}"] = ("application/zip", wheel("tiny_demo"))

    def publish(self, name: str, version: str = "1.0", files: Mapping[str, str] | None = None) -> None:
        """Add a version of a package."""
        file, page = f"{name}-{version}-py3-none-any.whl", f"/simple/{name.replace('_', '-')}/"
        text = self.pages.get(page, ("", b""))[1] + f'<a href="../../files/{file}">{file}</a>'.encode()
        self.pages[page] = ("text/html", text)
        self.pages[f"/files/{file}"] = ("application/zip", wheel(name, version, files))

    @property
    def url(self) -> str:
        """Its URL, with the user and the password."""
        return f"http://user:{PASSWORD}@127.0.0.1:{self.port}/simple"


@contextmanager
def package_index() -> Iterator[Index]:
    """Serve an index."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = base64.b64encode(f"user:{PASSWORD}".encode()).decode()
            known = self.headers.get("Authorization") == f"Basic {token}"
            (index.asked if known else index.refused).append(f"{self.command} {self.path}")
            kind, body = index.pages.get(self.path, ("", b"")) if known else ("", b"")
            self.send_response(302 if kind == "redirect" else 200 if kind else 404 if known else 401)
            if kind == "redirect":
                self.send_header("Location", body.decode())
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_PUT = do_HEAD = do_GET  # noqa: N815  # the names that it wants

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        index = Index(server.server_port)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield index
        finally:
            server.shutdown()
            thread.join()
