"""What the host does to a workspace in a session's name: what the session itself may do."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cellblock import FilesError, Host
from cellblock.host.files import Files
from cellblock.host.files.walls import OUTSIDE, UNREADABLE, UNWRITABLE, Walls, _with_targets
from cellblock.walls.sandbox.policy import Filesystem, Policy
from cellblock.walls.sandbox.srt import SrtPolicy
from cells import ok

PROTECTED = [".git/config", ".git/hooks/pre-commit", ".GIT/config", ".vscode/tasks.json", ".claude/settings.json", ".envrc"]
HIDDEN = [".env", ".ssh/id_rsa", ".Env", "private/key"]


@pytest.mark.slow
def test_targets_of_links_are_those_of_realpath(tmp_path: Path) -> None:
    """A quicker way to the same."""
    chance = random.Random(1)
    for number in range(60):
        base = tmp_path / f"{number}"
        (base / "a" / "b").mkdir(parents=True)
        for name in ("l", "a/l", "a/b/l", "x", "a/x"):
            kind = chance.choice(["link", "folder", "file", "nothing"])
            if kind == "link":
                (base / name).symlink_to(chance.choice(["..", "/etc", "missing", "/etc/passwd", "../..", "a"]))
            elif kind == "folder":
                (base / name).mkdir()
            elif kind == "file":
                (base / name).touch()
        ends = ["a", "l", "x", "a/l", "a/b/l/c", "l/a", "l/../a", "x/..", "a/", ".", "missing/../a", "missing/l", "..hidden"]
        paths = [os.path.join(base, chance.choice(ends), chance.choice(ends)) for _ in range(40)]
        for path in paths:
            assert _with_targets([path]) == {path, os.path.realpath(path)}
        assert _with_targets(paths) == {*paths, *map(os.path.realpath, paths)}


@pytest.fixture
def files(workspace: Path, host: Host) -> Files:
    rules = Filesystem(deny_read=(*Filesystem().deny_read, "private"), write=(".", "private/open"))
    return Files(workspace, walls=Walls.of(Policy(rules), host.facts, str(workspace), str(workspace)))


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"new"))
    return made.getvalue()


async def unpacked(stream: AsyncIterator[bytes]) -> list[str]:
    data = b"".join([piece async for piece in stream])
    return sorted(tarfile.open(fileobj=io.BytesIO(data)).getnames())


@pytest.mark.parametrize("path", [*PROTECTED, *HIDDEN])
async def test_what_a_session_may_not_write_nobody_writes_for_it(files: Files, workspace: Path, path: str) -> None:
    """Also where there is nothing of that name yet: git, an editor or an agent would find it later."""
    for work in (files.write(path, b"x"), files.mkdir(path), files.untar(archive("f"), path), files.upload(__file__, path)):
        with pytest.raises(FilesError, match=r"the session's sandbox (protects|hides) it, so the host does not") as caught:
            await work
        assert caught.value.errno == errno.EACCES
    assert [*workspace.iterdir()] == []
    await files.write(path, b"x", trusted=True)
    for work in (files.remove(path), files.remove(path.split("/")[0], recursive=True)):
        with pytest.raises(FilesError, match="sandbox"):
            await work
    assert (workspace / path).read_bytes() == b"x"
    await files.remove(path, trusted=True)


async def test_what_a_session_may_not_write_is_left_out_of_archives_and_folders(
    files: Files, workspace: Path, tmp_path: Path
) -> None:
    taken = await files.untar(archive("a", ".git/config", "sub/.git/config", ".env", "b"))
    assert taken.files == 3
    assert {one.path: one.reason for one in taken.skipped} == {".git/config": UNWRITABLE, ".env": UNREADABLE}
    assert sorted(str(path.relative_to(workspace)) for path in workspace.rglob("*") if path.is_file()) == [
        "a",
        "b",
        "sub/.git/config",
    ]
    folder = tmp_path / "folder"
    (folder / ".vscode").mkdir(parents=True)
    (folder / ".vscode/tasks.json").write_text("{}")
    (folder / "c").write_text("c")
    copied = await files.upload(folder, "sub")
    assert (copied.files, copied.skipped) == (2, ())  # only the top of the workspace is protected
    with pytest.raises(FilesError, match="sandbox protects"):
        await files.upload(folder / ".vscode", ".vscode")


@pytest.mark.parametrize("path", HIDDEN)
async def test_what_a_session_may_not_read_nobody_reads_for_it(
    files: Files, workspace: Path, tmp_path: Path, path: str
) -> None:
    await files.write(path, b"secret", trusted=True)
    await files.write("a", b"a")
    for work in (files.read(path), files.read_text(path), files.read_part(path, 0, 9), files.stat(path)):
        with pytest.raises(FilesError, match="the session's sandbox hides it"):
            await work
    with pytest.raises(FilesError, match="hides it"):
        await files.download(path, tmp_path / "got")
    with pytest.raises(FilesError, match="hides it"):
        await unpacked(files.tar(path))
    skipped: list[str] = []
    assert await unpacked(files.tar(on_skip=lambda one: skipped.append(one.path))) == ["a"]
    assert path in skipped
    got = await files.download(".", tmp_path / "copy")
    assert path in [one.path for one in got.skipped]
    assert [*(tmp_path / "copy").iterdir()] == [tmp_path / "copy" / "a"]
    assert [info.path for info in await files.list(recursive=True)] == ["a"]
    assert await files.read(path, trusted=True) == b"secret"


async def test_what_is_allowed_within_something_hidden_is_read_and_written(files: Files) -> None:
    await files.write("private/open/data", b"x")
    assert await files.read("private/open/data") == b"x"
    await files.write("privately", b"x")  # only the beginning of its name is the same
    assert await files.read("privately") == b"x"


async def test_where_a_protected_link_leads_nobody_writes_either(files: Files, workspace: Path) -> None:
    """The user may keep settings in the workspace by a link."""
    (workspace / "dotfiles").mkdir()
    (workspace / ".vscode").symlink_to("dotfiles")
    with pytest.raises(FilesError, match="sandbox protects"):
        await files.write("dotfiles/tasks.json", b"{}")
    with pytest.raises(FilesError, match=r"sandbox protects"):
        await files.remove("dotfiles", recursive=True)


async def test_a_session_without_a_sandbox_has_no_walls(zygote_host: Host, tmp_path: Path) -> None:
    async with zygote_host.session(working_dir=tmp_path, isolate="none") as session:
        await session.files.write(".env", b"x")
        assert await session.files.read(".env") == b"x"


async def test_a_saved_session_brings_no_file_that_its_session_could_not_write(
    zygote_host: Host, native_host: Host, tmp_path: Path
) -> None:
    """Neither does what it leaves out stop the rest, and the report names it."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    async with zygote_host.session(working_dir=one, isolate="none") as session:
        await ok(session, "x = 41")
        for name in ("data", ".git/config", ".env", ".vscode/tasks.json"):
            await session.files.write(name, b"[core]\n\tfsmonitor = touch /tmp/pwned\n")
        await session.save(tmp_path / "evil.cellblock", workspace=True)
    async with native_host.session(working_dir=two) as session:
        report = await session.load(tmp_path / "evil.cellblock", workspace=True)
        assert (await session.execute("x + 1")).return_value == "42"
        (two / ".env").write_text("SECRET=1")
        await session.save(tmp_path / "good.cellblock", workspace=True)
        assert {left.name for left in report.left_out} == {".git", ".git/config", ".env", ".vscode", ".vscode/tasks.json"}
    assert sorted(path.name for path in two.iterdir()) == [".env", "data"]
    async with zygote_host.session(working_dir=one, isolate="none") as session:
        report = await session.load(tmp_path / "good.cellblock", workspace=True)
        assert (one / ".env").read_bytes().startswith(b"[core]")


@pytest.mark.slow
async def test_what_a_branch_was_given_does_not_come_to_the_workspace_under_a_protected_name(tmp_path: Path) -> None:
    """The sandbox protects names at the top of the workspace. The top of a branch becomes that when it is adopted."""
    async with Host() as host, host.session(working_dir=tmp_path) as session:
        await ok(session, "open('data', 'w').write('1')")
        (branch,) = await session.fork(1)
        for name in (".vscode/tasks.json", ".env", ".git/config"):
            with pytest.raises(FilesError, match="sandbox"):
                await branch.files.write(name, b"x")
        await ok(branch, "import os\nfor name in ('.vscode', '.git'): os.mkdir(name); open(name + '/x', 'w').write('x')")
        await ok(branch, "for name in ('.envrc', '.env', 'data'): open(name, 'w').write('2')")
        await session.adopt(branch)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]
    assert (tmp_path / "data").read_text() == "2"


@pytest.mark.parametrize("write", [(), ("out",), ("out/deeper", "kept/..")])
async def test_what_no_policy_makes_writable_nobody_writes(host: Host, workspace: Path, write: tuple[str, ...]) -> None:
    for name in ("out/deeper", "kept"):
        (workspace / name).mkdir(parents=True)
    (workspace / "kept/file").write_text("kept")
    files = Files(workspace, walls=Walls.of(Policy(Filesystem(write=write)), host.facts, str(workspace), str(workspace)))
    if write[-1:] == ("kept/..",):
        await files.write("anywhere", b"x")  # this is the workspace itself
        return
    for path in ("new", "kept/file", "outer"):
        for work in (
            files.write(path, b"x"),
            files.mkdir(path),
            files.untar(archive("f"), path),
            files.upload(__file__, path),
        ):
            with pytest.raises(FilesError, match="sandbox does not allow writing it"):
                await work
    with pytest.raises(FilesError, match="does not allow writing"):
        await files.remove("kept", recursive=True)
    taken = await files.untar(archive("new", "out/new"))
    assert [one.path for one in taken.skipped if one.reason == OUTSIDE] == (["new"] if write else ["new", "out/new"])
    assert (workspace / "kept/file").read_text() == "kept"
    assert not (workspace / "new").exists()
    assert await files.read("kept/file") == b"kept"


OWN_SETTINGS: dict[str, Any] = {
    "filesystem": {
        "denyRead": ["private", "**/*.pem", "data/[ab]?/**"],
        "allowRead": ["private/open"],
        "allowWrite": ["."],
        "denyWrite": ["kept", "conf*"],
    },
    "network": {"allowedDomains": [], "deniedDomains": []},
}


async def test_settings_of_srt_count_as_srt_means_them(host: Host, workspace: Path) -> None:
    files = Files(workspace, walls=Walls.of(SrtPolicy.parse(OWN_SETTINGS), host.facts, str(workspace), str(workspace)))
    hidden = ["private/key", "a.pem", "deep/er/b.PEM", "data/a1/x", ".env"]
    for path in (*hidden, "private/open/x", "data/c1/x", "kept/x", "config"):
        await files.write(path, b"x", trusted=True)
    for path in hidden:
        for work in (files.read(path), files.stat(path), files.write(path, b"y"), unpacked(files.tar(path))):
            with pytest.raises(FilesError, match="the session's sandbox hides it"):
                await work
    for path in ("kept/x", "kept/new", "config", "confetti/x", ".git/config"):
        with pytest.raises(FilesError, match="the session's sandbox protects it"):
            await files.write(path, b"y")
    assert await files.read("private/open/x") == await files.read("data/c1/x") == await files.read("config") == b"x"
    await files.write("private/open/x", b"y")
    seen = [info.path for info in await files.list(recursive=True) if info.kind == "file"]
    assert seen == ["config", "data/c1/x", "kept/x", "private/open/x"]


async def test_a_workspace_in_something_that_srt_hides_is_hidden(host: Host, workspace: Path) -> None:
    for shown, readable in ((["data"], ["data/x"]), (["."], ["data/x", "x"]), ([], [])):
        settings = {"denyRead": [str(workspace.parent)], "allowRead": shown, "allowWrite": ["."], "denyWrite": []}
        policy = SrtPolicy.parse({"filesystem": settings})
        files = Files(workspace, walls=Walls.of(policy, host.facts, str(workspace), str(workspace)))
        for path in ("x", "data/x"):
            await files.write(path, b"x", trusted=True)
            with pytest.raises(FilesError, match="hides it") if path not in readable else nullcontext():
                await files.read(path)


@pytest.mark.srt
async def test_under_srt_the_host_does_what_the_session_can_do(tmp_path: Path) -> None:
    for name in ("private", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / "link").symlink_to("private/file")
    settings = {**OWN_SETTINGS, "filesystem": {**OWN_SETTINGS["filesystem"], "denyRead": ["private"], "allowRead": []}}
    async with Host(isolate="srt", policy=SrtPolicy.parse(settings)) as host, host.session(working_dir=tmp_path) as session:
        await ok(session, "import os\ndef fails(path, mode):\n    try: open(path, mode)\n    except OSError: return True")
        assert (
            await session.execute("fails('private/file', 'r'), fails('kept/file', 'w'), fails('new', 'w')")
        ).text == "(True, True, None)"
        for work in (session.files.read("private/file"), session.files.read("link"), session.files.write("kept/file", b"y")):
            with pytest.raises(FilesError):
                await work
        await session.files.write("new", b"y")
        packed = await unpacked(session.files.tar())
        assert "private/file" not in packed
        assert "kept/file" in packed
    assert (tmp_path / "kept/file").read_text() == "x"
