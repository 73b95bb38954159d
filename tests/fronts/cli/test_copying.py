"""Files of any size are copied in parts, and no half of one is left anywhere."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import cellblock
from cellblock.errors import InvalidInputError
from cellblock.fronts.cli import file_commands, main
from cellblock.fronts.cli.progress import Progress
from cellblock.operations import file_parts
from suite import first_quick


@pytest.fixture(scope="module")
def workspace(daemon: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of the session ``f``."""
    directory = tmp_path_factory.mktemp("files")
    cellblock.get_or_create("f", working_dir=str(directory))
    return directory


@pytest.mark.parametrize("size", first_quick([0, 1, 100, 101, 1000, 1001], 2))
def test_files_of_any_size_go_in_and_out(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(file_commands, "_PART", 100)
    data = os.urandom(size)
    (tmp_path / "a").write_bytes(data)
    assert main(["files", "put", "f", str(tmp_path / "a")]) == 0
    assert (workspace / "a").read_bytes() == data
    assert main(["files", "get", "f", "a", "--to", str(tmp_path / "b")]) == 0
    assert (tmp_path / "b").read_bytes() == data


@pytest.mark.slow
def test_a_file_that_no_message_could_hold(workspace: Path, tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(200 * 1024 * 1024)
        file.write(b"end")
    assert main(["files", "put", "f", str(tmp_path / "large")]) == 0
    assert main(["files", "get", "f", "large", "--to", str(tmp_path / "back")]) == 0
    with open(tmp_path / "large", "rb") as sent, open(tmp_path / "back", "rb") as back:
        assert hashlib.file_digest(sent, "sha256").digest() == hashlib.file_digest(back, "sha256").digest()
    (workspace / "large").unlink()


def test_a_file_that_changes_is_not_saved(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(file_parts, "_PART", 100)
    (workspace / "log").write_bytes(bytes(1000))
    take = file_parts.FileReading.take

    def grow(self: file_parts.FileReading, answer: Mapping[str, Any]) -> bytes:
        (workspace / "log").write_bytes(bytes(2000))
        return take(self, answer)

    monkeypatch.setattr(file_parts.FileReading, "take", grow)
    assert main(["files", "get", "f", "log", "--to", str(tmp_path)]) != 0
    assert "changed while it was read" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_what_is_saved_is_complete_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def broken() -> Iterator[bytes]:
        yield b"new"
        assert not target.exists() or target.read_bytes() == b"old"
        raise KeyboardInterrupt

    for before in (None, b"old"):
        if before is not None:
            target.write_bytes(before)
        with pytest.raises(KeyboardInterrupt):
            file_commands.save(broken(), str(target), force=True)
        assert os.listdir(tmp_path) == ([] if before is None else ["a"])
    assert target.read_bytes() == b"old"
    with pytest.raises(InvalidInputError, match="exists already"):
        file_commands.save(iter([b"new"]), str(target), force=False)
    target.chmod(0o640)
    assert file_commands.save(iter([b"new", b"er"]), str(target), force=True) == 5
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"newer", 0o640)


def test_a_link_a_pipe_and_a_device_are_written_to_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    file_commands.save(iter([b"new"]), str(tmp_path / "link"), force=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    file_commands.save(iter([b"new"]), str(tmp_path / "pipe"), force=True)
    assert os.read(reading, 10) == b"new"
    os.close(reading)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.slow
def test_an_upload_that_is_interrupted_leaves_nothing(workspace: Path, tmp_path: Path) -> None:
    before = {*os.listdir(workspace)}
    os.mkfifo(tmp_path / "endless")
    program = (
        "import sys; from cellblock.fronts.cli import file_commands as files, main; "
        "files._PART = 10; sys.exit(main(sys.argv[1:]))"
    )
    arguments = ["files", "put", "f", str(tmp_path / "endless")]
    process = subprocess.Popen([sys.executable, "-c", program, *arguments], stderr=subprocess.PIPE)
    with open(tmp_path / "endless", "wb", buffering=0) as writing:
        writing.write(bytes(1000))
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert b"Traceback" not in said
    assert {*os.listdir(workspace)} == before


def test_how_far_it_is() -> None:
    progress = Progress("reading f")
    assert progress.line.startswith("reading f … ")
    progress.advance(1024, 4096)
    assert progress.line.startswith("reading f [#####...............] 25% of 4,096 bytes … ")
    progress.advance(0, 0)
    assert "[####################] 100% of 0 bytes" in progress.line
