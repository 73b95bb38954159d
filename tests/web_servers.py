"""A web server for tests that reach one, or must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

IN_A_SESSION = """
import asyncio
async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 4\\r\\n\\r\\npage")
    writer.close()
server = await asyncio.start_server(answer, "127.0.0.1", 8501)
"""
"""Code of a cell that serves ``page`` at port 8501."""


@contextmanager
def web_server(address: str = "127.0.0.1") -> Iterator[int]:
    """Serve ``hello`` at an address of this machine; yields the port."""

    class Hello(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"hello")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer((address, 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()
