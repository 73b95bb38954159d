"""`Session.diff`: what has changed since a checkpoint."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path

import pytest

from cellblock import CheckpointError, FilesError, FileVersions, Host, InvalidInputError, Session, StateChanges, StateError
from cellblock.model.checkpoints import FileChange, FileChanges, FileVersion
from suite import first_quick


async def test_new_changed_and_deleted_variables_are_told(native_host: Host, tmp_path_factory: pytest.TempPathFactory) -> None:
    workspace = tmp_path_factory.mktemp("workspace")
    async with native_host.session(working_dir=workspace, images_dir=workspace, recovery="none") as session:
        await session.execute("import threading, numpy as np")
        await session.execute("same = [1, {'a': 'b'}]; rows = [1]; gone = 1; other = 1; lock = threading.Lock()")
        await session.execute("array = np.zeros(1000)\ndef f(): return 1\ndef g(): return 1")
        checkpoint = await session.checkpoint()
        sessions = len(native_host._sessions)
        assert not (await session.diff(checkpoint)).variables.changed
        await session.execute("rows.append(2); del gone; other = 'text'; new = 2; array[500] = 1\ndef g(): return 2")
        changes = (await session.diff(checkpoint)).variables
        assert [one.name for one in changes.new] == ["new"]
        assert [one.name for one in changes.deleted] == ["gone"]
        assert {one.after.name: (one.before.type, one.after.type) for one in changes.changed} == {
            "rows": ("list", "list"),
            "other": ("int", "str"),
            "array": ("numpy.ndarray", "numpy.ndarray"),
            "g": ("function", "function"),
        }
        assert [one.before.shape for one in changes.changed if one.after.name == "rows"] == [(1,)]
        assert [one.name for one in changes.unknown] == ["lock"]
        assert (await session.execute("rows, _i")).execution_count == 5  # nothing was left behind in it
        assert len(native_host._sessions) == sessions
        await checkpoint.drop()
        with pytest.raises(CheckpointError):
            await session.diff(checkpoint)


async def test_files_are_told_if_the_checkpoint_holds_them(host: Host, tmp_path: Path) -> None:
    async with host.session(working_dir=tmp_path, images_dir=tmp_path, recovery="none") as session:
        await session.execute("open('changed', 'w').write('1'); open('gone', 'w').write('1')")
        checkpoint = await session.checkpoint(files="copy")
        assert not await session.diff(checkpoint)
        await session.execute(
            "import os; open('changed', 'w').write('22'); os.remove('gone'); open('new', 'w').close(); del os"
        )
        changes = await session.diff(checkpoint)
        assert changes.files == FileChanges(
            (FileChange("new", None, 0),), (FileChange("changed", 1, 2),), (FileChange("gone", 1, None),)
        )
        assert not changes.variables
        assert StateChanges.from_dict(json.loads(json.dumps(changes.to_dict()))) == changes
        await checkpoint.drop()
        shared = await session.checkpoint()
        assert (await session.diff(shared)).files is None
        await shared.drop()


async def test_the_lines_of_a_file(native_host: Host, tmp_path: Path) -> None:
    async with native_host.session(working_dir=tmp_path, images_dir=tmp_path) as session:
        await session.execute("import os; os.mkdir('d'); open('d/a.py', 'w').write('one\\ntwo\\x0c\\nthree')")
        first = await session.checkpoint(files="copy")
        await session.execute("open('d/a.py', 'w').write('one\\n2\\nthree\\n'); open('new', 'w').write('x\\n')")
        last = await session.checkpoint(files="copy")
        await session.execute("os.remove('d/a.py')")
        versions = await session.file_versions("d/a.py", first, last)
        assert versions.before == FileVersion(14, "one\ntwo\x0c\nthree")
        assert versions.diff() == (
            "--- a/d/a.py\n+++ b/d/a.py\n@@ -1,3 +1,3 @@\n one\n-two\x0c\n-three\n\\ No newline at end of file\n+2\n+three\n"
        )
        assert FileVersions.from_dict(json.loads(json.dumps(versions.to_dict()))) == versions
        assert not (await session.file_versions("new", last)).diff()
        new = await session.file_versions("new", first)
        assert (new.before, new.after) == (None, FileVersion(2, "x\n"))
        assert new.diff().startswith("--- /dev/null\n+++ b/new\n")
        assert (await session.file_versions(str(tmp_path / "d/a.py"), last)).after is None
        await first.drop()
        with pytest.raises(CheckpointError):
            await session.file_versions("new", first)
        await last.drop()


async def test_what_has_no_lines(host: Host, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    (workspace := tmp_path / "workspace").mkdir()
    async with host.session(working_dir=workspace, images_dir=tmp_path, recovery="none") as session:
        await session.execute(
            f"import os; os.mkdir('folder'); os.symlink({str(outside)!r}, 'link'); os.mkfifo('fifo'); os.mkdir('.git')\n"
            "open('.git/a', 'w').close(); open('bytes', 'wb').write(b'\\xff'); open('nul', 'wb').write(b'\\0')\n"
            "open('most', 'wb').write(b'x' * 2**18); open('large', 'wb').write(b'x' * (2**18 + 1))"
        )
        checkpoint = await session.checkpoint(files="copy")
        for path, why in (
            ("folder", "it is a folder"),
            ("link", "it is a link"),
            ("bytes", "not text in UTF-8"),
            ("nul", "NUL"),
            ("large", "more than 256 KiB"),
        ):
            versions = await session.file_versions(path, checkpoint)
            for one in (versions.before, versions.after):
                assert one is not None
                assert one.text is None
                assert why in one.why
            with pytest.raises(FilesError, match=f"{path}.*cannot be compared line by line: .*{why}"):
                versions.diff()
        assert (left_out := (await session.file_versions(".git/a", checkpoint)).before) is not None
        assert "not saved" in left_out.why
        assert (fifo := (await session.file_versions("fifo", checkpoint)).after) is not None
        assert fifo.why == "it is not a file"
        assert (most := (await session.file_versions("most", checkpoint)).before) is not None
        assert most.text == "x" * 2**18
        for path in ("missing", "most/missing"):
            with pytest.raises(FilesError, match="in either state") as raised:
                await session.file_versions(path, checkpoint)
            assert raised.value.errno == errno.ENOENT
        for path in ("../outside", "/etc/passwd", ".", ""):
            with pytest.raises(InvalidInputError):
                await session.file_versions(path, checkpoint)
        shared = await session.checkpoint()
        with pytest.raises(CheckpointError, match=r"holds no files: .*files='copy'"):
            await session.file_versions("most", shared)
        await checkpoint.drop()
        await shared.drop()


@pytest.mark.parametrize("turns", first_quick(range(15, 75, 15)))
async def test_a_session_that_ends_meanwhile_is_not_a_kernel_that_fails(native_host: Host, tmp_path: Path, turns: int) -> None:
    async with native_host.session(working_dir=tmp_path, images_dir=tmp_path) as session:
        await session.execute("x = 1")
        await session.execute("x = 2")
        looking = asyncio.create_task(session.diff(session.checkpoints()[-1]))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        await session.close()
        (told,) = await asyncio.gather(looking, return_exceptions=True)
        assert isinstance(told, StateChanges | CheckpointError | StateError), told


async def test_what_is_not_a_checkpoint_is_refused(session: Session) -> None:
    with pytest.raises(InvalidInputError, match="checkpoint must be a checkpoint"):
        await session.diff(1)  # type: ignore[arg-type]
