"""Files that E2B's clients list and look at."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cellblock.fronts.e2b.contexts import Workspace
from cellblock.fronts.e2b.filesystem import entry

REFUSED = ("invalid_argument", "permission_denied")
"""How a client is told that the sandbox does not let files be written there."""


def call(api: httpx.Client, method: str, **message: Any) -> dict[str, Any]:
    """Call a method that works."""
    answer = api.post(f"/filesystem.Filesystem/{method}", json=message)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def fails(api: httpx.Client, method: str, **message: Any) -> str:
    """Return the code with which a method fails."""
    answer = api.post(f"/filesystem.Filesystem/{method}", json=message)
    assert answer.status_code >= 400
    assert answer.json()["message"]
    return str(answer.json()["code"])


@pytest.fixture(scope="module", autouse=True)
def files(server: object) -> None:
    """A folder with some files, where the server works."""
    os.makedirs("place/below/deep", exist_ok=True)
    for name in ("place/a.txt", "place/below/b.txt", "place/below/deep/c.txt"):
        Path(name).write_text("text")
    os.symlink("a.txt", "place/link")
    os.chmod("place/a.txt", 0o640)


def test_a_file_is_described(api: httpx.Client) -> None:
    found = call(api, "Stat", path="place/a.txt")["entry"]
    assert found.pop("modifiedTime").endswith("Z")
    assert found == {
        "name": "a.txt",
        "type": "FILE_TYPE_FILE",
        "path": "/home/user/place/a.txt",
        "size": 4,
        "mode": 0o640,
        "permissions": "-rw-r-----",
        "owner": "user",
        "group": "user",
    }
    assert call(api, "Stat", path="/home/user")["entry"]["type"] == "FILE_TYPE_DIRECTORY"
    for path in ("nowhere", "nowhere/at/all", "place/a.txt/below"):
        assert fails(api, "Stat", path=path) == "not_found"
    assert call(api, "Stat", path="/etc")["entry"]["path"] == "/etc"


def test_directories_are_listed_as_deep_as_wanted(api: httpx.Client) -> None:
    def paths(**message: Any) -> list[str]:
        return [one["path"].removeprefix("/home/user/place/") for one in call(api, "ListDir", **message)["entries"]]

    assert paths(path="place") == paths(path="place", depth=1) == ["a.txt", "below", "link"]
    assert paths(path="place", depth=2) == ["a.txt", "below", "below/b.txt", "below/deep", "link"]
    assert "below/deep/c.txt" in paths(path="~/place", depth=3)
    assert fails(api, "ListDir", path="nowhere") == "not_found"
    assert fails(api, "ListDir", path="place/a.txt") == "invalid_argument"
    assert fails(api, "ListDir", path="place", depth="x") == "invalid_argument"


def test_directories_are_made_with_those_above(api: httpx.Client) -> None:
    assert call(api, "MakeDir", path="made/in/it")["entry"]["path"] == "/home/user/made/in/it"
    assert Path("made/in/it").is_dir()
    assert fails(api, "MakeDir", path="made/in/it") == "already_exists"
    Path("made/file").touch()
    assert fails(api, "MakeDir", path="made/file/below") in ("already_exists", "invalid_argument")
    assert fails(api, "MakeDir", path="/etc/made") in REFUSED
    assert call(api, "MakeDir", path="made/$(touch no) -p 'x'")["entry"]["name"] == "$(touch no) -p 'x'"
    assert not Path("no").exists()


def test_files_get_another_name(api: httpx.Client) -> None:
    Path("old").write_text("old")
    Path("there").write_text("there")
    assert call(api, "Move", source="old", destination="/home/user/in/new")["entry"]["path"] == "/home/user/in/new"
    assert call(api, "Move", source="in/new", destination="there")["entry"]["size"] == 3
    assert (Path("there").read_text(), Path("in/new").exists(), Path("old").exists()) == ("old", False, False)
    assert fails(api, "Move", source="nowhere", destination="x") == "not_found"
    assert fails(api, "Move", source="there", destination="/etc/x") in REFUSED
    assert fails(api, "Move", source="there", destination="") == "invalid_argument"


def test_files_are_removed(api: httpx.Client) -> None:
    os.makedirs("gone/with")
    Path("gone/with/all").touch()
    assert call(api, "Remove", path="gone") == {}
    assert not Path("gone").exists()
    assert call(api, "Remove", path="gone") == {}
    assert fails(api, "Remove", path="/etc/passwd") in REFUSED
    assert fails(api, "Remove", path="") == "invalid_argument"


def test_files_outside_the_workspace_are_those_that_code_sees(api: httpx.Client) -> None:
    assert call(api, "MakeDir", path="/tmp/made/deep")["entry"]["path"] == "/tmp/made/deep"
    answer = api.post("/files", params={"path": "/tmp/made/a.txt"}, files={"file": ("a.txt", b"content")})
    assert answer.json() == [{"name": "a.txt", "type": "file", "path": "/tmp/made/a.txt"}]
    assert api.get("/files", params={"path": "/tmp/made/a.txt"}).content == b"content"
    assert [one["path"] for one in call(api, "ListDir", path="/tmp/made", depth=1)["entries"]] == [
        "/tmp/made/a.txt",
        "/tmp/made/deep",
    ]
    assert call(api, "Move", source="/tmp/made/a.txt", destination="/tmp/made/deep/b.txt")["entry"]["size"] == 7
    assert not Path("/tmp/made").exists(), "it is the sandbox's /tmp"
    assert call(api, "Remove", path="/tmp/made") == {}
    assert fails(api, "Stat", path="/tmp/made") == "not_found"


def test_a_watcher_keeps_what_has_changed(api: httpx.Client) -> None:
    os.makedirs("watched/below", exist_ok=True)
    number = call(api, "CreateWatcher", path="watched", recursive=True)["watcherId"]
    Path("watched/below/a").write_text("text")
    Path("watched/below/a").rename("watched/b")
    found: list[tuple[str, str]] = []
    deadline = time.monotonic() + 60
    while ("b", "EVENT_TYPE_CREATE") not in found and time.monotonic() < deadline:
        events = call(api, "GetWatcherEvents", watcherId=number)["events"]
        found += [(one["name"], one["type"]) for one in events]
    assert found[0] == ("below/a", "EVENT_TYPE_CREATE")
    assert ("below/a", "EVENT_TYPE_WRITE") in found
    assert ("below/a", "EVENT_TYPE_RENAME") in found
    assert call(api, "RemoveWatcher", watcherId=number) == {}
    assert fails(api, "GetWatcherEvents", watcherId=number) == "not_found"
    assert fails(api, "CreateWatcher", path="nowhere") == "not_found"


@pytest.mark.slow
def test_a_stream_tells_what_changes(api: httpx.Client) -> None:
    os.makedirs("streamed", exist_ok=True)
    body = json.dumps({"path": "streamed"}).encode()
    headers = {"Content-Type": "application/connect+json", "Keepalive-Ping-Interval": "1"}
    envelope = struct.pack(">BI", 0, len(body)) + body
    found: list[dict[str, Any]] = []
    with api.stream("POST", "/filesystem.Filesystem/WatchDir", content=envelope, headers=headers, timeout=60) as answer:
        for piece in answer.iter_bytes():
            found += [json.loads(part) for part in messages(piece)]
            if found == [{"start": {}}]:
                Path("streamed/new").touch()
            if {"keepalive": {}} in found:
                break
    assert found[1] == {"filesystem": {"name": "new", "type": "EVENT_TYPE_CREATE"}}


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages in complete envelopes."""
    while data:
        size = struct.unpack_from(">BI", data)[1]
        yield data[5 : 5 + size]
        data = data[5 + size :]


def test_any_time_can_be_told() -> None:
    info = {"path": "a", "kind": "other", "size": 0, "mode": 0o644, "modified": 1e300}
    found = entry(Workspace("/w", "/home/user", {}), info)
    assert (found["modifiedTime"], found["type"]) == ("1970-01-01T00:00:00Z", "FILE_TYPE_UNSPECIFIED")
