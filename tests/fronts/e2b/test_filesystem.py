"""Files that E2B's clients list and look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from cellblock.fronts.e2b.contexts import Workspace
from cellblock.fronts.e2b.filesystem import entry


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
    assert fails(api, "Stat", path="/etc") == "invalid_argument"


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
    assert fails(api, "MakeDir", path="/etc/made") == "invalid_argument"
    assert call(api, "MakeDir", path="made/$(touch no) -p 'x'")["entry"]["name"] == "$(touch no) -p 'x'"
    assert not Path("no").exists()


def test_files_get_another_name(api: httpx.Client) -> None:
    Path("old").write_text("old")
    Path("there").write_text("there")
    assert call(api, "Move", source="old", destination="/home/user/in/new")["entry"]["path"] == "/home/user/in/new"
    assert call(api, "Move", source="in/new", destination="there")["entry"]["size"] == 3
    assert (Path("there").read_text(), Path("in/new").exists(), Path("old").exists()) == ("old", False, False)
    assert fails(api, "Move", source="nowhere", destination="x") == "not_found"
    assert fails(api, "Move", source="there", destination="../x") == "invalid_argument"
    assert fails(api, "Move", source="there", destination="") == "invalid_argument"


def test_files_are_removed(api: httpx.Client) -> None:
    os.makedirs("gone/with")
    Path("gone/with/all").touch()
    assert call(api, "Remove", path="gone") == {}
    assert not Path("gone").exists()
    assert call(api, "Remove", path="gone") == {}
    assert fails(api, "Remove", path="/etc/passwd") == "invalid_argument"
    assert fails(api, "Remove", path="") == "invalid_argument"


def test_any_time_can_be_told() -> None:
    info = {"path": "a", "kind": "other", "size": 0, "mode": 0o644, "modified": 1e300}
    found = entry(Workspace("/w", "/home/user", {}), info)
    assert (found["modifiedTime"], found["type"]) == ("1970-01-01T00:00:00Z", "FILE_TYPE_UNSPECIFIED")
