"""Sessions are saved to URLs and loaded from them as from files: whole, or not at all."""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cellblock import CodeExecutor, Host, InvalidInputError, Session, StoreError, UnsupportedError
from cellblock.common import url_folder
from cellblock.common.url_folder import folder_at
from cellblock.model.saving import SaveReport
from processes import eventually
from suite import first_quick


@pytest.fixture
def url() -> Iterator[str]:
    """The URL of a file that does not exist; nothing else is left in its folder, nor a temporary file here."""
    folder, files = f"memory://{secrets.token_hex(8)}", {*os.listdir(tempfile.gettempdir())}
    yield f"{folder}/s.cellblock"
    assert set(folder_at(folder).names()) <= {"s.cellblock"}
    assert {*os.listdir(tempfile.gettempdir())} <= files


@pytest.fixture
async def target(host: Host) -> AsyncIterator[Session]:
    """Another session."""
    async with host.session() as session:
        yield session


async def test_a_session_goes_on_from_a_url(session: Session, target: Session, host: Host, url: str) -> None:
    await session.execute("x = 1; open('a', 'w').write('there'); None")
    report = await session.save(url, workspace=True)
    assert (report.path, report.saved, report.files) == (url, ["x"], True)
    assert SaveReport.from_dict(report.to_dict()) == report
    await target.execute("import os; os.path.exists('a') and os.unlink('a')")
    assert (await target.load(url, workspace=True)).loaded == ["x"]
    assert (await target.execute("x, open('a').read()")).return_value == "(1, 'there')"
    async with await host.load(url) as third:
        assert (await third.execute("x")).return_value == "1"


async def test_a_file_url_is_a_path(session: Session, target: Session, tmp_path: Path) -> None:
    await session.execute("x = 1")
    report = await session.save(f"file://{tmp_path}/a%20b")
    assert report.path == tmp_path / "a b"
    await target.load(f"file://{tmp_path}/a%20b")
    assert (await target.execute("x")).return_value == "1"
    with pytest.raises(InvalidInputError, match="in the workspace"):
        await session.save(f"file://{session.workspace}/s", workspace=True)


async def test_executors_pass_urls_on(executor: CodeExecutor, url: str) -> None:
    await executor.execute("x = 1")
    await executor.save(url)
    await executor.execute("x = 2")
    await executor.load(url)
    assert (await executor.execute("x")).text == "1"


async def test_what_is_not_a_saved_session_changes_nothing(session: Session, url: str) -> None:
    folder = folder_at(url.rpartition("/")[0])
    await session.execute("x = 1")
    await session.save(url)
    whole = folder.read("s.cellblock", 10**6)
    assert whole is not None
    for damaged in (b"", b"bad", whole[:-50], whole[:100] + b"\0" * 50 + whole[150:]):
        folder.write("s.cellblock", damaged)
        with pytest.raises(InvalidInputError, match=f"^{url} cannot be loaded: it is not a saved session, or is damaged"):
            await session.load(url)
    assert (await session.execute("x")).return_value == "1"
    with pytest.raises(StoreError, match="no such file"):
        await session.load(f"{url}-missing")


async def test_what_is_too_large_changes_nothing(session: Session, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await session.execute("x = 1")
    await session.save(url)
    monkeypatch.setattr(url_folder, "MAX_FILE", 100)
    with pytest.raises(StoreError, match="over the limit of 100"):
        await session.load(url)
    assert (await session.execute("x")).return_value == "1"


async def test_a_store_that_fails_keeps_what_it_had(session: Session, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await session.execute("x = 1")
    await session.save(url)
    before = folder_at(url.rpartition("/")[0]).read("s.cellblock", 10**6)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("Forbidden")

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "put_file", refuse)
        with pytest.raises(StoreError, match=r"s.cellblock: the store denied access: PermissionError: Forbidden"):
            await session.save(url)
    assert folder_at(url.rpartition("/")[0]).read("s.cellblock", 10**6) == before


@pytest.mark.parametrize("way", first_quick(["save", "load"]))
async def test_a_transfer_can_be_cancelled(session: Session, url: str, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The call returns when the transfer has ended, and it ends soon."""
    await session.execute("x = 1")
    await session.save(url)
    began, ended = threading.Event(), threading.Event()

    def slowly(*given: Any) -> None:
        began.set()
        assert given[-1].wait(20)
        ended.set()
        raise url_folder.Stopped

    monkeypatch.setattr(url_folder._StoreFolder, "upload" if way == "save" else "download", slowly)
    work = asyncio.create_task(getattr(session, way)(url))
    await eventually(began.is_set)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert ended.is_set()
    assert (await session.execute("x")).return_value == "1"


async def test_urls_of_no_file_are_refused(session: Session) -> None:
    for wrong in ("s3://bucket", "memory://a/", "a::memory://b", "memory://a/../b", "sftp://u:p@h/a"):
        with pytest.raises((InvalidInputError, StoreError)):
            await session.save(wrong)
        with pytest.raises((InvalidInputError, StoreError)):
            await session.load(wrong)


async def test_a_missing_package_is_told_before_anything_is_pickled(session: Session) -> None:
    await session.execute("class Slow:\n    def __reduce__(self):\n        while True: pass\nx = Slow()")
    with pytest.raises((UnsupportedError, InvalidInputError), match="nosuchscheme"):
        await session.save("nosuchscheme://a/b", timeout=60)
