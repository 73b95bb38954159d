"""Files that E2B's clients read and write."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import httpx
import pytest

from fronts.e2b.conftest import run
from gateways import own_gateway
from suite import first_quick


def put(api: httpx.Client, path: str, data: bytes, **headers: str) -> httpx.Response:
    """Write a file."""
    headers = {"Content-Type": "application/octet-stream"} | {name.replace("_", "-"): text for name, text in headers.items()}
    return api.post("/files", params={"path": path}, content=data, headers=headers)


@pytest.mark.slow
def test_files_are_those_of_the_code(api: httpx.Client) -> None:
    data = os.urandom(9 * 1024 * 1024)
    answer = put(api, "in/data.bin", data)
    assert answer.json() == [{"name": "data.bin", "type": "file", "path": "/home/user/in/data.bin"}]
    code = "one = open('in/data.bin', 'rb').read()\none == open('/home/user/in/data.bin', 'rb').read(), len(one)"
    assert run(api, code)[-1]["text"] == f"(True, {len(data)})"
    for path in ("in/data.bin", "/home/user/in/data.bin", f"{os.getcwd()}/in/data.bin"):
        answer = api.get("/files", params={"path": path})
        assert (answer.content == data, answer.headers["content-length"]) == (True, str(len(data)))
    run(api, "open('empty', 'w').close()")
    assert api.get("/files", params={"path": "empty"}).content == b""


@pytest.mark.slow
def test_several_files_come_in_one_form(api: httpx.Client) -> None:
    files = [("file", ("one.txt", b"1")), ("file", ("/home/user/two/three.txt", b"3")), ("other", ("no.txt", b"no"))]
    assert [one["path"] for one in api.post("/files", files=files).json()] == [
        "/home/user/one.txt",
        "/home/user/two/three.txt",
    ]
    assert Path("two/three.txt").read_bytes() == b"3"
    assert not Path("no.txt").exists()
    answer = api.post("/files", params={"path": "named.txt"}, files=[("file", ("ignored.txt", b"named"))])
    assert answer.json()[0]["path"] == "/home/user/named.txt"
    assert Path("named.txt").read_bytes() == b"named"


PART = b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="form-%d"\r\n\r\nx\r\n'


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        PART % 1,
        (PART % 2 + b"--xyz--\r\n").replace(b"\r\n", b"\n"),
        b"--xyz\r\nX: " + b"x" * 20_000 + b"\r\n\r\n\r\n--xyz--\r\n",
        b"".join(PART % number for number in range(1001)) + b"--xyz--\r\n",
    ],
    ids=["empty", "no form", "no end", "other lines", "long header", "many files"],
)
def test_a_form_that_is_broken_or_too_long_is_refused(api: httpx.Client, body: bytes) -> None:
    for kind in ("multipart/form-data; boundary=xyz", "multipart/form-data", "text/plain"):
        assert api.post("/files", content=body, headers={"Content-Type": kind}).status_code == 400
    assert not [*Path().glob("form-*")]


@pytest.mark.slow
def test_a_body_can_be_compressed_and_cannot_grow_without_end(api: httpx.Client) -> None:
    assert put(api, "packed.txt", gzip.compress(b"x" * 100_000), content_encoding="gzip").status_code == 200
    assert Path("packed.txt").read_bytes() == b"x" * 100_000
    assert put(api, "cut.txt", gzip.compress(os.urandom(1000))[:-20], content_encoding="gzip").status_code == 400
    assert put(api, "no.txt", b"no gzip", content_encoding="gzip").status_code == 400
    assert put(api, "no.txt", b"x", content_encoding="br").status_code == 400
    with own_gateway("e2b", max_upload=1_000_000) as small, small.client() as client:
        bomb = put(client, "bomb.txt", gzip.compress(b"x" * 20_000_000), content_encoding="gzip")
        assert (bomb.status_code, bomb.json()["message"]) == (413, "a file can have 1000000 bytes")
        assert put(client, "large.txt", b"x" * 1_000_001).status_code == 413
        assert put(client, "fits.txt", b"x" * 1_000_000).status_code == 200
    left = {path.name for path in Path().iterdir()}
    assert {"fits.txt", "packed.txt"} <= left
    assert not {"bomb.txt", "large.txt", "cut.txt", "no.txt"} & left
    assert not [name for name in left if name.startswith(".") and name not in (".git", ".env")], "half a file"


def test_what_is_wrong_is_said_as_envd_says_it(api: httpx.Client) -> None:
    run(api, "import os\nos.makedirs('folder', exist_ok=True)\nos.symlink('/etc/passwd', 'link')")
    for path, status, what in (
        ("nowhere.txt", 404, "does not exist"),
        ("folder", 400, ""),
        ("link", 400, ""),
        ("/etc/no-such-file", 404, "does not exist"),
        ("../x", 404, "does not exist"),
        ("", 400, "path must be"),
        ("a\0b", 400, "path must be"),
    ):
        answer = api.get("/files", params={"path": path})
        assert (answer.status_code, answer.json()["code"]) == (status, status), (path, answer.text)
        assert what in answer.json()["message"]
        if status != 404:
            assert put(api, path, b"x").status_code == status or path == "link"
    for request in ({"username": "root", "path": "x"}, {"username": "nobody", "path": "x"}):
        assert "one user" in api.get("/files", params=request).json()["message"]
        assert "one user" in api.post("/files", params=request, files=[("file", ("x", b"x"))]).json()["message"]
    assert put(api, "x", b"x", x_metadata_a="b").status_code == 501
    assert api.post("/files", files=[("other", ("x", b"x"))]).status_code == 400
    assert api.post("/files", params={"path": "x"}, files=[("file", ("a", b"x")), ("file", ("b", b"x"))]).status_code == 400
    assert put(api, "/etc/no-such-file", b"x").status_code == 400
    assert Path("/etc/passwd").is_file()


@pytest.mark.parametrize("name", first_quick([".git/hooks/post-checkout", ".env"]))
def test_what_the_session_may_not_touch_is_not_touched_here(api: httpx.Client, name: str) -> None:
    api.delete(f"/contexts/{api.get('/contexts').json()[0]['id']}")  # a session protects what there is when it begins
    place = Path(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("kept")
    assert put(api, name, b"changed").status_code == 403
    assert place.read_text() == "kept"
    if name == ".env":
        assert api.get("/files", params={"path": f"/home/user/{name}"}).status_code == 403
        assert run(api, f"open('/home/user/{name}').read()")[-1]["type"] == "error"
    assert run(api, f"open('/home/user/{name}', 'w')")[-1]["type"] == "error"
