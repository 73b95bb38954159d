"""The index that pip sees: what it serves, and to what it says no."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from cellblock.walls.packages import mirror as module
from cellblock.walls.packages import pages
from cellblock.walls.packages.index import PackageIndex
from cellblock.walls.packages.mirror import PackageMirror
from package_index import PASSWORD, Index, package_index

AUTHORIZATION = [""]
"""The header that gives access to the last mirror"""


@pytest.fixture
def upstream() -> Iterator[Index]:
    with package_index() as index:
        yield index


@asynccontextmanager
async def mirror(index: PackageIndex, size: int = 2**20) -> AsyncIterator[tuple[int, str]]:
    """Serve an index; yield the port, and the path of its first source."""
    listener = socket.create_server(("127.0.0.1", 0))
    async with PackageMirror(listener, index, size) as serving:
        port = listener.getsockname()[1]
        login, password = serving.credentials.split()[3::2]
        AUTHORIZATION[0] = "Authorization: Basic " + base64.b64encode(f"{login}:{password}".encode()).decode()
        urls = [option for option in serving.options(port) if option.startswith("http:")]
        yield port, urlsplit(urls[0]).path


async def ask(port: int, request: str) -> tuple[int, bytes]:
    """Send a request; return the status and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION[0]}\r\n\r\n".encode())
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


async def test_pages_and_files_are_fetched_with_the_hosts_credentials(upstream: Index) -> None:
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        status, page = await ask(port, f"GET {path}tiny-demo/")
        assert (status, PASSWORD.encode() in page) == (200, False)
        assert b'href="tiny_demo-1.0-py3-none-any.whl"' in page
        status, body = await ask(port, f"GET {path}tiny-demo/tiny_demo-1.0-py3-none-any.whl")
        assert (status, body) == (200, upstream.pages["/files/tiny_demo-1.0-py3-none-any.whl"][1])
    assert upstream.asked == ["GET /simple/tiny-demo/", "GET /files/tiny_demo-1.0-py3-none-any.whl"]


async def test_nothing_else_reaches_the_index(upstream: Index) -> None:
    upstream.pages["/simple/admin/"] = upstream.pages["/admin/"] = upstream.pages["/admin"] = ("text/html", b"secret")
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        for request_line in (
            "POST {path}tiny-demo/",
            "HEAD {path}tiny-demo/",
            "PUT {path}tiny-demo/tiny_demo-1.0-py3-none-any.whl",
            "GET http://127.0.0.1:{upstream}/simple/tiny-demo/",
            "CONNECT 127.0.0.1:{upstream}",
            "GET {path}../admin/",
            "GET {path}%2e%2e/",
            "GET {path}a%2f..%2fadmin/",
            "GET {path}tiny-demo/?delete=1",
            "GET {path}tiny-demo/admin",
            "GET {path}tiny-demo/../../admin",
            "GET {path}",
            "GET /wrong/0/tiny-demo/",
        ):
            status, body = await ask(port, request_line.format(path=path, upstream=upstream.port))
            assert status in (404, 405), request_line
            assert b"secret" not in body
    assert {*upstream.asked} <= {"GET /simple/tiny-demo/"}  # to find out what the page names


async def test_what_does_not_speak_http_gets_no_answer(upstream: Index) -> None:
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        for data in (
            b"garbage\r\n\r\n",
            b"GET {path} HTTP/1.1\r\n\r\n",
            b"GET {path} HTTP/1.1\r\nHost: x\r\n" + 3000 * b"a: b\r\n",
            b"GET {path}" + bytes(100) + b" HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked, chunked\r\n\r\n",
            b"",
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data.replace(b"{path}", f"{path}tiny-demo/".encode()))
            writer.write_eof()
            with suppress(ConnectionResetError):
                assert await reader.read() == b"", data
            writer.close()
            assert upstream.asked == []
        assert (await ask(port, f"GET {path}tiny-demo/"))[0] == 200


async def test_a_request_may_come_in_pieces(upstream: Index) -> None:
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for byte in f"GET {path}tiny-demo/ HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION[0]}\r\n\r\n".encode():
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_page_in_json_is_served_as_every_pip_reads_it(upstream: Index) -> None:
    file = {
        "filename": "tiny_demo-1.0-py3-none-any.whl",
        "url": "/files/tiny_demo-1.0-py3-none-any.whl",
        "hashes": {"sha256": "ab12"},
        "requires-python": ">=3.11",
        "yanked": "it was <bad>",
        "core-metadata": {"sha256": "cd34"},
    }
    upstream.pages["/simple/tiny-demo/"] = (pages.JSON, json.dumps({"files": [file]}).encode())
    upstream.pages[f"{file['url']}.metadata"] = ("text/plain", b"Name: tiny-demo")
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        _, page = await ask(port, f"GET {path}tiny-demo/")
        assert pages.read("http://x/", "text/html", page) == {
            file["filename"]: pages.File(
                "tiny_demo-1.0-py3-none-any.whl",
                "http://x/tiny_demo-1.0-py3-none-any.whl",
                "sha256=ab12",
                (
                    ("data-requires-python", ">=3.11"),
                    ("data-yanked", "it was <bad>"),
                    ("data-core-metadata", "sha256=cd34"),
                ),
            )
        }
        assert await ask(port, f"GET {path}tiny-demo/{file['filename']}.metadata") == (200, b"Name: tiny-demo")


async def test_files_that_are_too_new_or_of_unknown_age_are_left_out(upstream: Index) -> None:
    times = {"old": "2020-01-02T03:04:05.678Z", "new": "2999-01-01T00:00:00Z", "none": None, "wrong": "1999-01-01", "bad": 5}
    files = [{"filename": name, "url": f"/files/{name}", "upload-time": uploaded} for name, uploaded in times.items()]
    upstream.pages["/simple/tiny-demo/"] = (pages.JSON, json.dumps({"files": files}).encode())
    upstream.pages |= {f"/files/{name}": ("application/zip", b"x") for name in times}
    listener = socket.create_server(("127.0.0.1", 0))
    async with PackageMirror(listener, PackageIndex((upstream.url,), age=86400.0), 2**20) as serving:
        assert (await serving.find("/0/tiny-demo/old")).uploaded == times["old"]
        for name in ("new", "none", "wrong", "bad"):
            with pytest.raises(ValueError, match="the index has no file"):
                await serving.find(f"/0/tiny-demo/{name}")
        assert serving.too_new == 4
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        assert (await ask(port, f"GET {path}tiny-demo/new"))[0] == 200


async def test_credentials_do_not_follow_a_redirect_to_another_host(upstream: Index) -> None:
    with package_index() as other:
        upstream.pages["/simple/moved/"] = ("redirect", f"http://127.0.0.1:{other.port}/simple/tiny-demo/".encode())
        upstream.pages["/simple/local/"] = ("redirect", b"/simple/tiny-demo/")
        upstream.pages["/simple/disk/"] = ("redirect", b"file:///etc/passwd")
        async with mirror(PackageIndex((upstream.url,))) as (port, path):
            assert (await ask(port, f"GET {path}moved/"))[0] == 401
            assert (await ask(port, f"GET {path}local/"))[0] == 200
            assert (await ask(port, f"GET {path}disk/"))[0] >= 400
        assert (other.asked, other.refused) == ([], ["GET /simple/tiny-demo/"])


async def test_what_a_page_names_on_this_machine_is_not_served(upstream: Index) -> None:
    upstream.pages["/simple/local/"] = ("text/html", b'<a href="file:///etc/passwd">x</a><a href="ftp://x/y">y</a>')
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        status, page = await ask(port, f"GET {path}local/")
        assert (status, b"href" in page) == (200, False)
        assert (await ask(port, f"GET {path}local/passwd"))[0] == 404


async def test_pages_of_links_are_served(upstream: Index) -> None:
    name = "tiny_demo-1.0-py3-none-any.whl"
    upstream.pages["/links"] = ("text/html", f'<a href="/files/{name}">{name}</a>'.encode())
    links = upstream.url.replace("/simple", "/links")
    async with mirror(PackageIndex(links=(links,))) as (port, path):
        assert (await ask(port, f"GET {path}"))[0] == 200
        assert (await ask(port, f"GET {path}{name}"))[0] == 200


async def test_no_more_is_served_than_the_session_may_have(upstream: Index) -> None:
    upstream.pages["/simple/big/"] = ("text/html", b'<a href="/files/big.whl">x</a>')
    upstream.pages["/files/big.whl"] = ("application/zip", bytes(3 * 2**20))
    async with mirror(PackageIndex((upstream.url,)), size=2**20) as (port, path):
        _, body = await ask(port, f"GET {path}big/big.whl")
        assert len(body) <= 2**20


async def test_pages_have_a_limit_in_all(upstream: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ALL_PAGES", 10)
    async with mirror(PackageIndex((upstream.url,))) as (port, path):
        assert (await ask(port, f"GET {path}tiny-demo/"))[0] == 200
        assert (await ask(port, f"GET {path}another/"))[0] == 429
        assert (await ask(port, f"GET {path}tiny-demo/"))[0] == 200


async def test_what_the_index_refuses_pip_hears(upstream: Index) -> None:
    async with mirror(PackageIndex((upstream.url.replace(PASSWORD, "wrong"),))) as (port, path):
        assert (await ask(port, f"GET {path}tiny-demo/"))[0] == 401


def test_pip_is_told_of_local_directories_as_they_are() -> None:
    with socket.socket() as listener:
        index = PackageIndex(("file:///opt/simple", "https://u:p@index.example/simple"), ("/opt/wheels",), prereleases=True)
        options = PackageMirror(listener, index, 1).options(80)
        assert options[:3] == ["--pre", "--index-url", "file:///opt/simple"]
        assert options[3] == "--extra-index-url"
        assert options[4].startswith("http://127.0.0.1:80/")
        assert options[5:] == ["--find-links", "/opt/wheels"]
        assert PackageMirror(listener, PackageIndex(), 1).options(80) == ["--no-index"]
