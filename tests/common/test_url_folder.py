"""Folders at URLs, each of the same kind of use: local ones, fsspec's memory, a scheme without objects, an S3 server."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from cellblock import InvalidInputError, StoreError, UnsupportedError
from cellblock.common import url_folder
from cellblock.common.url_folder import Folder, Stopped, age, folder_at
from s3 import s3_server


@pytest.fixture(autouse=True)
def nothing_left_behind() -> None:
    """fsspec keeps its threads and connections."""


class Files(LocalFileSystem):  # type: ignore[misc]
    """A scheme whose files are seen while they are written."""

    protocol = "cellblock-test"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix("cellblock-test://"))


fsspec.register_implementation("cellblock-test", Files, clobber=True)


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The URL of a bucket."""
    with s3_server() as url:
        yield url


@pytest.fixture(params=["file", "memory", "cellblock-test", pytest.param("s3", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a folder that does not exist."""
    match request.param:
        case "memory":
            return f"memory://{secrets.token_hex(8)}/a"
        case "s3":
            return f"{request.getfixturevalue('bucket')}/{secrets.token_hex(8)}"
        case scheme:
            return f"{scheme}://{tmp_path}/a/b"


@pytest.fixture
def folder(url: str) -> Folder:
    """A folder."""
    return folder_at(url)


def test_a_folder_need_not_exist(folder: Folder) -> None:
    assert folder.names() == []
    assert folder.read("a", 10) is None
    folder.remove("a")
    folder.clear()


def test_small_files_are_written_read_listed_and_removed(folder: Folder) -> None:
    folder.write("a", b"1")
    folder.write("b", b"22")
    folder.write("a", b"333")
    assert folder.names() == ["a", "b"]
    assert folder.read("a", 3) == b"333"
    with pytest.raises(StoreError, match=r"has a, which cannot be read: .*over the limit of 2 bytes"):
        folder.read("a", 2)
    folder.remove("a")
    assert folder.names() == ["b"]
    folder.clear()
    assert folder.names() == []


def test_of_two_who_create_one_is_told(folder: Folder) -> None:
    assert folder.create("a", b"1")
    assert not folder.create("a", b"2")
    assert folder.read("a", 10) == b"1"
    assert folder.names() == ["a"]


def test_of_many_who_create_at_once_one_alone_is_told(folder: Folder) -> None:
    if not folder.exclusive or folder.url.startswith("memory"):  # which is of one process, and no thread of it is safe
        pytest.skip("it is not promised")
    barrier, told = threading.Barrier(4), list[bool]()

    def create(data: bytes) -> None:
        barrier.wait()
        told.append(folder.create("a", data))

    threads = [threading.Thread(target=create, args=(b"%d" % number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False, False, False, True]


def test_large_files_are_copied_there_and_back(folder: Folder, tmp_path: Path) -> None:
    data = os.urandom(1_000_000)
    (tmp_path / "local").write_bytes(data)
    folder.upload("a", str(tmp_path / "local"))
    assert folder.names() == ["a"]
    with open(tmp_path / "back", "w+b") as file:
        folder.download("a", file)
    assert (tmp_path / "back").read_bytes() == data


def test_what_is_stopped_changes_nothing(folder: Folder, tmp_path: Path) -> None:
    folder.write("a", b"old")
    (tmp_path / "local").write_bytes(os.urandom(100_000))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Stopped), open(tmp_path / "back", "w+b") as file:
        folder.download("a", file, stop)
    with pytest.raises(Stopped):
        folder.upload("a", str(tmp_path / "local"), stop)
    assert folder.read("a", 10) == b"old"
    assert folder.names() == ["a"]


def test_what_is_missing_too_large_or_does_not_fit_is_refused_before_it_is_read(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(told: str) -> None:
        with pytest.raises(StoreError, match=told), open(tmp_path / "back", "w+b") as file:
            folder.download("a", file)

    download(r"has a, which cannot be read: .*[Nn]o such file")
    folder.write("a", b"12345")
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 3}))
        download("room for 3")
    monkeypatch.setattr(url_folder, "MAX_FILE", 4)
    download("5 bytes, over the limit of 4")


def test_the_age_is_by_the_clock_of_the_store(folder: Folder) -> None:
    folder.write("a", b"1")
    assert 0 <= age(folder, "a") < 5
    assert folder.names() == ["a"]


def test_an_old_file_is_old(tmp_path: Path) -> None:
    folder = folder_at(f"file://{tmp_path}")
    folder.write("a", b"1")
    os.utime(tmp_path / "a", (time.time() - 100,) * 2)
    assert 99 < age(folder, "a") < 110


@pytest.mark.parametrize("more", [-1, 1])
def test_a_store_that_lies_about_a_length_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    folder = folder_at(f"memory://{secrets.token_hex(8)}")
    folder.write("a", b"12345")
    monkeypatch.setattr(MemoryFileSystem, "info", lambda *_: {"size": 5 + more})
    with (
        pytest.raises(StoreError, match=r"it ended after 5 of 6|more than its stated size"),
        open(tmp_path / "x", "wb") as file,
    ):
        folder.download("a", file)


def test_a_move_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_at(f"cellblock-test://{tmp_path}/a")
    folder.write("a", b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Files, "mv", fail)
    with pytest.raises(StoreError, match=r"cannot have a: OSError: .*No space left"):
        folder.write("a", b"new")
    assert os.listdir(tmp_path / "a") == ["a"]
    assert folder.read("a", 10) == b"old"


def test_a_scheme_that_nobody_knows_is_told() -> None:
    with pytest.raises(InvalidInputError, match="Protocol not known: nothing"):
        folder_at("nothing://a").names()


def test_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, "s3", raising=False)
    with pytest.raises(UnsupportedError, match=r"s3: URLs need an extra: pip install 'cellblock\[s3\]'"):
        folder_at("s3://bucket/a").prepare()
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UnsupportedError, match=r"memory: URLs need an extra: pip install 'cellblock\[urls\]'"):
        folder_at("memory://a").prepare()


def test_a_store_that_cannot_do_something_is_told(monkeypatch: pytest.MonkeyPatch) -> None:

    def cannot(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(MemoryFileSystem, "modified", cannot)
    folder = folder_at(f"memory://{secrets.token_hex(8)}")
    folder.write("a", b"1")
    with pytest.raises(UnsupportedError, match="does not report modification times"):
        age(folder, "a")


def test_refused_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Access\nDenied")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    with pytest.raises(
        StoreError, match=r"cannot have a: the store denied access: PermissionError: Access Denied. Set credentials"
    ):
        folder_at("memory://a").write("a", b"1")


@pytest.mark.slow
def test_a_server_that_has_no_such_bucket_or_is_not_there_is_told(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    with pytest.raises(StoreError, match="no such file or bucket"):
        folder_at("s3://nowhere/a").write("a", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="Could not connect"):
        folder_at(f"{bucket}/a").write("a", b"1")
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.slow
def test_without_credentials_it_is_said_whose_are_missing(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match=r"the store denied access: .*[Cc]redentials"):
        folder_at(f"{bucket}/a").write("a", b"1")
    s3fs.S3FileSystem.clear_instance_cache()


def test_a_store_without_folders_has_one_at_its_root() -> None:
    name = secrets.token_hex(8)
    folder = folder_at("memory://")
    folder.write(name, b"1")
    assert name in folder.names()
    assert folder.read(name, 1) == b"1"
    folder.remove(name)
