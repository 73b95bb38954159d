"""A file that a sandbox keeps from a cell: the error says why, once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cellblock import Host
from cellblock.host.kernels.kept_names import advice, advice_on

_ENV = ".env holds secrets of this project: its sessions can neither read, write nor make it"


@pytest.mark.parametrize(
    ("name", "message", "said"),
    [
        ("PermissionError", "[Errno 13] Permission denied: '.env'", _ENV),
        ("PermissionError", "[Errno 13] Permission denied: '/w/.env'", _ENV),
        ("OSError", "[Errno 30] Read-only file system: '.env'", _ENV),
        ("IsADirectoryError", "[Errno 21] Is a directory: '.env'", _ENV),
        ("FileExistsError", "[Errno 17] File exists: '.vscode'", "programs outside the sandbox run what .vscode says"),
        (
            "OSError",
            "[Errno 16] Device or resource busy: 'x' -> '.mcp.json'",
            "programs outside the sandbox run what .mcp.json",
        ),
        ("OSError", "[Errno 30] Read-only file system: '.git/config'", "a session can read .git, not write it"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '.env'", ""),
        ("PermissionError", "[Errno 13] Permission denied: 'env'", ""),
        ("PermissionError", "[Errno 13] Permission denied", ""),
        ("ValueError", "[Errno 13] Permission denied: '.env'", ""),
        (None, "", ""),
    ],
)
def test_the_reason_is_said_of_protected_names(name: str | None, message: str, said: str) -> None:
    assert advice(name, message).startswith(said)
    assert bool(advice(name, message)) == bool(said)


def test_a_git_that_could_not_write_is_recognised_by_what_it_says() -> None:
    assert advice_on("fatal: Unable to create '/w/.git/index.lock': Read-only file system\n").startswith(
        "a session can read .git"
    )
    assert advice_on("error: could not lock config file .git/config: Read-only file system\n")
    assert advice_on("touch: cannot touch '/usr/x': Read-only file system\n") == ""
    assert advice_on("see .git/config\n" + "Read-only file system") == ""


async def test_git_and_python_say_why_they_cannot_write(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    async with Host(isolate="native") as host, host.session(working_dir=tmp_path) as session:
        result = await session.execute("!git -c user.name=x -c user.email=x commit --allow-empty -m x")
        assert "Read-only file system" in (result.text or "")
        assert result.stderr.count("[cellblock] a session can read .git, not write it: its hooks") == 1
        failed = (await session.execute("open('.env', 'w')")).error
        assert failed is not None
        assert failed.evalue == f"[Errno 21] Is a directory: '.env' ({_ENV})"
        assert (await session.execute("try:\n    open('.env', 'w')\nexcept OSError as error:\n    print(error)")).text == (
            "[Errno 21] Is a directory: '.env'"
        )


async def test_without_a_sandbox_nothing_is_kept(zygote_host: Host, tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    async with zygote_host.session(working_dir=tmp_path, isolate="none") as session:
        failed = (await session.execute("open('.env', 'w')")).error
    assert failed is not None
    assert failed.evalue.endswith("'.env'")
