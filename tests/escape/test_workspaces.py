"""Workspaces that overlap, are reached through links, or are exchanged while a session starts."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Filesystem, Host, InvalidInputError, Policy, SandboxError
from cells import ok, value
from processes import eventually
from suite import first_quick

from .conftest import arm, armed_session


async def test_a_workspace_given_through_a_link_is_the_directory_behind_it(
    attacked_host: Host, workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(workspace)
    async with armed_session(attacked_host, tmp_path / "link") as session:
        assert await value(session, "[os.getcwd(), write('file')]") == [str(workspace), None]
        assert await value(session, f"[os.path.lexists('{tmp_path}/link'), answer(os.listdir, '..')]") == [
            False,
            ["workspace"],
        ]
    assert (workspace / "file").exists()


async def test_a_second_name_of_the_workspace_leads_nowhere_else(native_host: Host, workspace: Path) -> None:
    """What is kept from the session is kept by both names, and the name itself cannot be changed."""
    (workspace / ".env").write_text("secret")
    (workspace / ".git").mkdir()
    policy = Policy(Filesystem(home_is_workspace=True))
    async with armed_session(native_host, workspace, policy=policy) as session:
        assert await value(session, "[os.readlink('/home/user'), os.environ['HOME']]") == [str(workspace), "/tmp/home"]
        assert await value(session, "[write('/home/user/file'), os.listdir('/home')]") == [None, ["user"]]
        for attack in (
            "read('/home/user/.env')",
            "write('/home/user/.git/config')",
            "answer(os.listdir, '/home/user/..')",
            "answer(os.unlink, '/home/user')",
            "answer(os.rename, '/home/user', '/home/other')",
            "answer(os.symlink, '/', '/home/root')",
        ):
            found = await value(session, attack)
            assert found in ("EACCES", "EROFS", "EPERM", ["workspace"]), (attack, found)
    assert (workspace / "file").exists()
    assert (workspace / ".env").read_text() == "secret"


async def test_a_link_that_a_session_made_does_not_choose_the_next_workspace(
    attacked_host: Host, workspace: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    links = {"task": str(elsewhere), "sub": "../elsewhere", "far": f"{elsewhere}/.."}
    (elsewhere / "task").mkdir(parents=True)
    (workspace / "real").mkdir()
    async with attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images") as session:
        await ok(session, f"import os\nfor link, target in {links}.items(): os.symlink(target, link)")
    (tmp_path / "ours").symlink_to(workspace)
    for link in links:
        for path in (
            workspace / link,
            workspace / link / "task",
            tmp_path / "ours" / link,
            tmp_path / "ours" / "real" / ".." / link,
        ):
            with pytest.raises(InvalidInputError, match=f"{link} is a symbolic link in a directory that a session can write"):
                attacked_host.session(working_dir=path, images_dir=tmp_path / "images")
    async with attacked_host.session(working_dir=tmp_path / "ours" / "real", images_dir=tmp_path / "images") as session:
        assert await value(session, "import os; os.getcwd()") == str(workspace / "real")


async def test_a_directory_that_becomes_a_link_before_the_session_starts_is_refused(
    attacked_host: Host, workspace: Path, tmp_path: Path
) -> None:
    """What one session may write, another starts in; the one exchanges it for a link to what neither may see."""
    outside, inner = tmp_path / "outside", workspace / "inner"
    outside.mkdir()
    inner.mkdir()
    session = attacked_host.session(working_dir=inner, images_dir=tmp_path / "images")
    async with armed_session(attacked_host, workspace) as attacker:
        assert await value(attacker, f"[os.rename('inner', 'old'), os.symlink('{outside}', 'inner')]") == [None, None]
        with pytest.raises(SandboxError, match="symbolic links"):
            await session.start()
    await session.close()


async def test_a_link_on_the_way_is_refused_too(attacked_host: Host, workspace: Path, tmp_path: Path) -> None:
    inner = workspace / "way" / "inner"
    inner.mkdir(parents=True)
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    session = attacked_host.session(working_dir=inner, images_dir=tmp_path / "images")
    (workspace / "way").rename(workspace / "old")
    (workspace / "way").symlink_to(tmp_path / "outside")
    with pytest.raises(SandboxError, match="symbolic links"):
        await session.start()
    await session.close()


async def test_a_session_beneath_another_does_not_see_the_rest(attacked_host: Host, workspace: Path) -> None:
    inner = workspace / "inner"
    inner.mkdir()
    (workspace / "secret").write_text("outer")
    async with armed_session(attacked_host, inner) as session:
        code = "[read('../secret'), write('../x'), answer(os.listdir, '..'), answer(os.rename, '../inner', '../y')]"
        written, renamed = ("EACCES", "EACCES") if str(workspace).startswith("/tmp/") else ("EROFS", "EBUSY")
        assert await value(session, code) == ["ENOENT", written, ["inner"], renamed]


async def test_two_sessions_in_one_workspace_share_its_files_and_nothing_else(
    attacked_host: Host, workspace: Path, tmp_path: Path
) -> None:
    async with (
        attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images", recovery="none") as one,
        attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images", recovery="none") as other,
    ):
        await arm(one)
        await arm(other)
        assert (
            await value(one, "[write('shared'), write('/tmp/mine'), write('/dev/shm/mine'), os.mkfifo('pipe')]") == [None] * 4
        )
        assert await value(other, "[read('shared'), read('/tmp/mine'), read('/dev/shm/mine')]") == [
            "planted",
            "ENOENT",
            "ENOENT",
        ]

        async def alone() -> bool:
            return bool(await value(other, "len([name for name in os.listdir('/proc') if name.isdigit()])") == 2)

        # A descriptor cannot be fetched from a process of the other: there is none to be seen. What a restored kernel was made of
        # may still be ending.
        await eventually(alone)
    assert os.path.exists(workspace / "shared")


@pytest.fixture(params=["native", "srt"])
async def either_host(request: pytest.FixtureRequest, native_host: Host) -> AsyncIterator[Host]:
    """A warm host of the default kind of isolation, and one of srt."""
    if request.param == "native":
        yield native_host
    else:
        async with Host(isolate="srt") as host:
            yield host


async def test_a_workspace_that_is_not_to_be_written_is_read(either_host: Host, workspace: Path) -> None:
    (workspace / "file").write_text("content")
    policy = Policy(Filesystem(write=()))
    async with armed_session(either_host, workspace, policy=policy) as session:
        assert await value(session, "[os.getcwd(), read('file'), write('file')]") == [str(workspace), "content", "EROFS"]


async def test_what_cellblock_keeps_cannot_be_read_although_everything_else_can(either_host: Host, workspace: Path) -> None:
    state = Path(os.environ["CELLBLOCK_HOME"])
    (state / "servers.db").touch()
    policy = Policy(Filesystem(read=("/",)))
    async with armed_session(either_host, workspace, policy=policy) as session:
        assert await value(session, f"[os.path.isdir('/var/lib'), read('{state}/servers.db')]") in (
            [True, "EACCES"],
            [True, "ENOENT"],
        )


@pytest.mark.parametrize(
    "place", first_quick(["/usr/lib", "/dev", "venv", "/tmp", "/home/user", "/proc/self", "/", sys.prefix, ".vscode"], 3)
)
async def test_a_link_in_the_place_of_a_secret_takes_nothing_from_the_next_session(
    attacked_host: Host, workspace: Path, tmp_path: Path, place: str
) -> None:
    (workspace / ".vscode").mkdir()
    (workspace / ".vscode" / "settings.json").write_text("{}")
    policy = replace(Policy(), filesystem=replace(Policy().filesystem, deny_write=(".vscode", "venv")))
    (workspace / "venv").mkdir()
    (workspace / ".env").symlink_to(place)
    async with attacked_host.session(working_dir=workspace, images_dir=tmp_path / "images", policy=policy) as session:
        code = "import os, json, tempfile; tempfile.TemporaryFile().close()\n[[*os.scandir(path)] is not None if os.path.isdir(path) else bool(os.stat(path)) for path in PATHS]"
        paths = ["/usr/lib", "/dev/null", "/tmp", "/home/user", "/proc/self/stat", sys.prefix, ".vscode/settings.json"]
        assert await value(session, f"PATHS = {paths!r}\n{code}") == [True] * len(paths)
        assert await value(
            session, "try:\n    open('.env')\nexcept OSError as error:\n    got = type(error).__name__\ngot"
        ) in (
            "PermissionError",
            "IsADirectoryError",
        )
