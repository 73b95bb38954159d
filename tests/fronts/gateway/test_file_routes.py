"""The files of a session over HTTP: whole, in part, large, and never those of anybody else."""

from __future__ import annotations

import contextlib
import glob
import os
import socket
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from cellblock.fronts.gateway.file_routes import range_of
from gateways import Gateway, own_gateway, token
from processes import eventually

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def session(api: httpx.Client) -> Path:
    """The session that the tests share; its workspace."""
    return Path(api.post("/sessions/s").json()["workspace"])


FILES = "/sessions/s/files"
IN_THE_SANDBOX = ("/etc/passwd", "%2fetc%2fpasswd")


def test_a_file_from_its_making_to_its_end(api: httpx.Client, session: Path) -> None:
    made = api.put(f"{FILES}/deep/data.csv", content=b"a,b\n")
    assert (made.status_code, made.json()["path"], made.json()["size"]) == (201, "deep/data.csv", 4)
    assert (session / "deep" / "data.csv").read_bytes() == b"a,b\n"
    listed = [one["path"] for one in api.get(FILES, params={"recursive": True}).json()["files"]]
    assert [path for path in listed if path.startswith("deep")] == ["deep", "deep/data.csv"]
    found = api.get(f"{FILES}/deep/data.csv")
    assert (found.content, found.headers["content-type"]) == (b"a,b\n", "application/octet-stream")
    assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''data.csv"
    assert found.headers["x-content-type-options"] == "nosniff"
    assert api.get(f"{FILES}/deep/data.csv", headers={"If-None-Match": found.headers["etag"]}).status_code == 304
    assert api.delete(f"{FILES}/deep").status_code == 409
    assert api.delete(f"{FILES}/deep", params={"recursive": True}).json() == {"done": True}
    missing = api.get(f"{FILES}/deep/data.csv")
    assert (missing.status_code, missing.json()["code"], missing.json()["path"]) == (404, "files", "deep/data.csv")


@pytest.mark.parametrize("path", [".git/config", ".vscode/tasks.json", ".env", ".claude/settings.json"])
def test_what_a_session_may_not_write_nobody_writes_over_http(api: httpx.Client, session: Path, path: str) -> None:
    refused = api.put(f"{FILES}/{path}", content=b"x")
    assert (refused.status_code, refused.json()["code"]) == (403, "files")
    assert "the session's sandbox" in refused.json()["detail"]
    assert "trusted" not in refused.text  # which is for programs in Python
    assert not (session / path).is_file()


def test_what_a_session_may_not_read_nobody_reads_over_http(api: httpx.Client, session: Path) -> None:
    (session / ".env").rmdir() if (session / ".env").is_dir() else None
    (session / ".env").write_text("TOKEN=secret")
    assert api.get(f"{FILES}/.env").status_code == 403
    assert ".env" not in [one["path"] for one in api.get(FILES).json()["files"]]


def test_a_part_of_a_file(api: httpx.Client) -> None:
    api.put(f"{FILES}/digits", content=b"0123456789")

    def part(wanted: str, **headers: str) -> tuple[int, bytes, str | None]:
        found = api.get(f"{FILES}/digits", headers={"Range": wanted, **headers})
        return found.status_code, found.content, found.headers.get("content-range")

    assert part("bytes=2-4") == (206, b"234", "bytes 2-4/10")
    assert part("bytes=7-") == (206, b"789", "bytes 7-9/10")
    assert part("bytes=-3") == (206, b"789", "bytes 7-9/10")
    assert part("bytes=8-99") == (206, b"89", "bytes 8-9/10")
    assert part("bytes=10-") == (416, b"", "bytes */10")
    assert part("bytes=-0") == (416, b"", "bytes */10")
    for ignored in ("bytes=0-1,3-4", "lines=1-2", "bytes=a-b", "bytes=--1"):
        assert part(ignored) == (200, b"0123456789", None)
    assert part("bytes=2-4", **{"If-Range": '"other"'})[0] == 200
    assert range_of("", "", 10) is None
    assert range_of("9" * 19, "", 10) is None


def test_a_large_file_goes_through_in_pieces(api: httpx.Client, session: Path) -> None:
    piece = os.urandom(1_000_003)
    made = api.put(f"{FILES}/large", content=(piece for _ in range(12)))
    assert made.json()["size"] == 12 * len(piece)
    with api.stream("GET", f"{FILES}/large") as answer:
        assert b"".join(answer.iter_bytes()) == piece * 12
    (session / "large").unlink()


def test_a_file_that_is_too_large_is_refused(api: httpx.Client, session: Path) -> None:
    before = {*os.listdir(session)}
    with own_gateway(max_upload=5_000_000) as small, small.client(token("run")) as client:
        announced = client.put(f"{FILES}/big", content=bytes(5_000_001))
        assert (announced.status_code, announced.json()["code"]) == (413, "too_large")
        streamed = client.put(f"{FILES}/big", content=(bytes(1_000_000) for _ in range(6)))
        assert (streamed.status_code, streamed.json()["code"]) == (413, "too_large")
    assert api.get(f"{FILES}/big").status_code == 404
    assert {*os.listdir(session)} == before


@pytest.mark.parametrize(
    "path",
    ["../secret", "..%2fsecret", "%2e%2e/secret", "a/../../secret", "/etc/passwd", "%2fetc%2fpasswd", "..", "a%00b"],
)
def test_nothing_outside_the_workspace_is_reached(gateway: Gateway, session: Path, path: str) -> None:
    (session.parent / "secret").write_text("secret")
    for method in ("GET", "PUT", "DELETE"):
        with socket.create_connection(("127.0.0.1", gateway.port)) as connection:  # a client would tidy the path up
            connection.sendall(
                f"{method} {FILES}/{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('run')}\r\n"
                "Content-Length: 1\r\nConnection: close\r\n\r\nx".encode()
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        if path in IN_THE_SANDBOX and method == "GET":
            assert b"\r\n\r\nuser:x:1000" in answer, "the sandbox's own file, as its code sees it"
        else:
            assert b" 4" in answer[:12], answer
        assert b"root:" not in answer
    assert (session.parent / "secret").read_text() == "secret"
    (session.parent / "secret").unlink()


def test_absolute_paths_are_as_the_code_sees_them(api: httpx.Client, gateway: Gateway) -> None:
    assert api.put(f"{FILES}//tmp/place/a", content=b"text").status_code == 201
    assert api.get(f"{FILES}//tmp/place/a", headers={"Range": "bytes=1-2"}).content == b"ex"
    assert api.get("/sessions/s/stat", params={"path": "/tmp/place/a"}).json()["size"] == 4
    assert api.post("/sessions/s/folders", json={"path": "/tmp/place/b/c"}).json() == {"done": True}
    assert api.post("/sessions/s/rename", json={"path": "/tmp/place/a", "to": "/tmp/place/b/a"}).json() == {"done": True}
    listed = api.get(FILES, params={"path": "/tmp/place", "recursive": True}).json()["files"]
    assert [one["path"] for one in listed] == ["/tmp/place/b", "/tmp/place/b/a", "/tmp/place/b/c"]
    assert api.delete(f"{FILES}//tmp/place", params={"recursive": True}).json() == {"done": True}
    assert not Path("/tmp/place").exists()
    with gateway.client(token("read")) as reader:
        for refused in (
            reader.get(f"{FILES}//tmp/place/a"),
            reader.get(FILES, params={"path": "/tmp"}),
            reader.get("/sessions/s/stat", params={"path": "/tmp"}),
        ):
            assert refused.status_code == 403
            assert "relative to the workspace" in refused.json()["detail"]


async def test_nothing_is_left_of_an_upload_whose_client_is_gone(gateway: Gateway, session: Path) -> None:
    def written() -> bool:
        """Whether a file without a name is being written there."""
        for path in glob.glob("/proc/[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"{session}/#"):
                    return True
        return False

    before = {*os.listdir(session)}
    head = f"PUT {FILES}/gone HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token('run')}\r\nContent-Length: 20000000"
    with socket.create_connection(("127.0.0.1", gateway.port)) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + bytes(9_000_000))
        await eventually(written)
    await eventually(lambda: not written() and {*os.listdir(session)} == before)


@pytest.mark.parametrize("name", ["two\nlines", "ends\n", "\n", "a b/ü?#%"])
def test_a_file_may_have_any_name(api: httpx.Client, session: Path, name: str) -> None:
    address = f"{FILES}/{quote(name, safe='/')}"
    assert api.put(address, content=b"1").status_code == 201
    assert (session / name).read_bytes() == b"1"
    assert api.get(address).content == b"1"
    assert api.delete(address).json() == {"done": True}
    assert not (session / name).exists()
