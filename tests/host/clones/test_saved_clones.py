"""Saved clones: they need no other repository, and nothing of a save runs or is read on the host."""

from __future__ import annotations

import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock import Host, InvalidInputError, Session, SessionOptions
from cellblock.errors import ExecutionTimeoutError, StateError
from cellblock.host.clones import clone
from git_repositories import Repository, hostile, run

pytestmark = pytest.mark.slow

CHANGE = "!echo two >> a.txt && git commit -qam two && echo s > b && git add b && echo u > c && chmod +x c && ln -s a.txt l"
STATE = "!git status --porcelain -b; git log --format=%s; cat c; readlink l; test -x c && git fsck --no-dangling"
SAVED = """\
## cellblock/{name}
A  b
?? c
?? l
two
a commit
u
a.txt"""


def in_a_clone(path: Path) -> SessionOptions:
    return SessionOptions(working_dir=path, workspace="clone")


async def saved(session: Session, path: Path) -> str:
    """Change the clone, and save the session. Return the state of the clone."""
    await run(session, CHANGE)
    report = await session.save(path, workspace=True)
    assert (report.files, report.left_out) == (True, [])
    before = await run(session, STATE)
    assert before.partition("\n")[2] == SAVED.partition("\n")[2]
    return before


async def test_a_saved_clone_needs_no_repository(native_host: Host, repository: Repository, tmp_path: Path) -> None:
    path = tmp_path / "save"
    async with native_host.session(working_dir=repository.path, workspace="clone") as session:
        before = await saved(session, path)
    repository.path.rename(tmp_path / "gone")
    repository.path.mkdir()
    async with await native_host.load(path, in_a_clone(repository.path), workspace=True) as session:
        assert await run(session, STATE) == before
        assert (await session.clone_diff()).files == ("a.txt", "b", "c", "l")
        for work in (session.clone_fetch, session.clone_apply):
            with pytest.raises(StateError, match=r"has no git repository, .* run 'git init' there"):
                await work()
        await session.save(tmp_path / "again", workspace=True)
        (branch,) = await session.fork()
        new = Repository(repository.path)
        for one in (session, branch):
            assert new.git("log", "--format=%s", (await one.clone_fetch()).ref) == "two\na commit"
        await branch.close()
    async with await native_host.load(tmp_path / "again", in_a_clone(repository.path), workspace=True) as session:
        assert await run(session, STATE) == before
    assert new.git("for-each-ref", "refs/cellblock") == ""


async def test_a_clone_is_loaded_in_place(cloned: Session, repository: Repository, tmp_path: Path) -> None:
    before = await saved(cloned, tmp_path / "save")
    await run(cloned, "!git reset -q --hard HEAD~1 && git branch other && echo x > c && echo x > lost")
    (branch,) = await cloned.fork()
    await cloned.load(tmp_path / "save", workspace=True)
    assert await run(cloned, STATE + "; git branch; ls") == f"{before}\n* {before.split()[1]}\n  main\na.txt\nb\nc\nl"
    (entry,) = await cloned.trash()
    assert {"lost", ".git/HEAD"} <= {file.path for file in entry.files}
    assert (await cloned.clone_fetch()).commits == 1
    assert await run(branch, "!cat lost; git branch") != ""  # as before
    await branch.load(tmp_path / "save", workspace=True)
    assert await run(branch, STATE) == before
    await branch.close()
    assert (await cloned.clone_apply()).files == ("a.txt", "b", "c", "l")
    assert (repository.path / "a.txt").read_text() == "one\ntwo\n"
    assert len(repository.git("for-each-ref", "refs/cellblock").splitlines()) == 1


async def test_a_load_that_fails_leaves_the_clone(cloned: Session, tmp_path: Path) -> None:
    await run(cloned, "class Slow:\n    def __reduce__(self): import time; return time.sleep, (600,)\nx = Slow()")
    await cloned.save(tmp_path / "save", workspace=True)
    await run(cloned, "x = 1\n!git checkout -q -b other && echo mine > mine")
    before = await run(cloned, "!git status -bs; ls -a")
    with pytest.raises(ExecutionTimeoutError):
        await cloned.load(tmp_path / "save", workspace=True, timeout=0.5)
    assert await run(cloned, "!git status -bs; ls -a") == before
    assert await run(cloned, "x") == "1"
    assert await cloned.trash() == []


async def test_another_first_commit_is_pinned_and_goes_with_a_branch(
    cloned: Session, native_host: Host, repository: Repository, tmp_path: Path
) -> None:
    await cloned.save(tmp_path / "save", workspace=True)
    first = repository.git("rev-parse", "HEAD")
    later = repository.commit(**{"a.txt": "later\n"})
    async with native_host.session(working_dir=repository.path, workspace="clone") as session:
        (branch,) = await session.fork()
        pins = repository.git("for-each-ref", "--format=%(objectname)", "refs/cellblock").split()
        assert sorted(pins) == sorted([first, later, later])
        await branch.load(tmp_path / "save", workspace=True)
        assert (await branch.clone_diff()).base == first
        await session.adopt(branch)
        assert (await session.clone_diff()).base == first
        assert {*repository.git("for-each-ref", "--format=%(objectname)", "refs/cellblock").split()} == {first}


async def test_files_of_clones_and_of_other_sessions_do_not_mix(cloned: Session, native_host: Host, tmp_path: Path) -> None:
    await cloned.save(tmp_path / "clone", workspace=True)
    (work := tmp_path / "work").mkdir()
    async with native_host.session(working_dir=work) as session:
        await session.save(tmp_path / "other", workspace=True)
        with pytest.raises(InvalidInputError, match=r"loaded into a session in a clone \(workspace='clone'\) only"):
            await session.load(tmp_path / "clone", workspace=True)
    assert not [*work.iterdir()]
    with pytest.raises(InvalidInputError, match="loaded into a session without workspace='clone' only"):
        await cloned.load(tmp_path / "other", workspace=True)
    await cloned.load(tmp_path / "other")


async def test_settings_in_a_save_run_in_the_sandbox_only(
    cloned: Session, native_host: Host, repository: Repository, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    await run(cloned, hostile(mark))
    await run(cloned, "!git config core.worktree /etc")
    await cloned.save(tmp_path / "save", workspace=True)
    async with await native_host.load(tmp_path / "save", in_a_clone(repository.path), workspace=True) as session:
        await run(session, "!git config --unset core.worktree; git add a.txt; ls /tmp/ran")
        await session.clone_diff()
    assert not mark.exists()


async def test_a_save_contains_no_objects_that_the_session_cannot_read(cloned: Session, tmp_path: Path) -> None:
    secret = Repository(tmp_path / "secret")
    commit = secret.commit(secret="SECRET")
    for path in (f"{secret.path}/.git/objects", "../../../secret/.git/objects", "/etc"):
        await run(cloned, f"!echo {path} >> .git/objects/info/alternates")
    await cloned.save(tmp_path / "save", workspace=True)
    await run(cloned, f"!echo {commit} > .git/refs/heads/stolen")
    with pytest.raises(StateError, match=r"(?s)the clone cannot be saved: .*Repair it, or save without its files"):
        await cloned.save(tmp_path / "stolen", workspace=True)
    assert not (tmp_path / "stolen").exists()
    await cloned.save(tmp_path / "without")
    with zipfile.ZipFile(tmp_path / "save") as archive, tarfile.open(fileobj=archive.open("workspace.tar")) as files:
        assert ".git/objects/info/alternates" not in files.getnames()


@pytest.mark.parametrize(
    "code",
    [
        "!mv .git real && ln -s real .git",
        "!ln -s /tmp/.origin o && mv .git real && ln -s /tmp/.origin .git",
        "!mv .git real && echo 'gitdir: /tmp/.origin' > .git",
        "!mv .git/objects . && ln -s ../objects .git/objects",
        "!rm -rf .git",
        "!echo garbage > .git/HEAD",
    ],
)
async def test_what_is_no_repository_is_not_saved(cloned: Session, tmp_path: Path, code: str) -> None:
    await run(cloned, code)
    with pytest.raises(StateError, match="the clone cannot be saved"):
        await cloned.save(tmp_path / "save", workspace=True)
    assert not (tmp_path / "save").exists()


async def test_references_of_a_save_do_not_reach_the_project(cloned: Session, repository: Repository, tmp_path: Path) -> None:
    await run(cloned, "!git tag evil && git commit -q --allow-empty -m new && git update-ref refs/remotes/cellblock/x HEAD")
    await run(cloned, "!git update-ref refs/heads/-x HEAD && git update-ref refs/cellblock/1 HEAD")
    await cloned.save(tmp_path / "save", workspace=True)
    before = repository.git("for-each-ref")
    await cloned.load(tmp_path / "save", workspace=True)
    assert repository.git("for-each-ref") == before
    assert "refs/heads/-x" in await run(cloned, "!git for-each-ref")
    fetched = await cloned.clone_fetch()
    assert {*repository.git("for-each-ref").splitlines()} - {*before.splitlines()} == {
        f"{fetched.commit} commit\t{fetched.ref}"
    }


def crafted(path: Path, made: Path, change: Callable[[dict[str, bytes]], object]) -> Path:
    """Write a save with other members."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made


def with_entries(*entries: tarfile.TarInfo, only: bool = False) -> Callable[[dict[str, bytes]], None]:
    """Return a function that adds entries to the files of a save."""

    def change(members: dict[str, bytes]) -> None:
        data = io.BytesIO(b"" if only else members["workspace.tar"])
        with tarfile.open(fileobj=data, mode="w" if only else "a") as archive:
            for entry in entries:
                archive.addfile(entry, io.BytesIO(b"x" * entry.size))
        members["workspace.tar"] = data.getvalue()

    return change


def entry(name: str, target: str = "", size: int = 0, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size = (tarfile.SYMTYPE, target, 0) if target else (kind, "", size)
    return made


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (with_entries(only=True), r"\.git is not a directory"),
        (with_entries(entry(".git", "/tmp/.origin"), only=True), r"\.git is not a directory"),
        (with_entries(entry(".git", size=9), only=True), r"\.git is not a directory"),
        (lambda members: members.update({"workspace.tar": b"x" * 2000}), "cannot be loaded"),
        (lambda members: members.update({"clone": b"../../x"}), "no valid first commit"),
        (lambda members: members.update({"clone": b"--help" + b"0" * 34}), "no valid first commit"),
        (lambda members: members.pop("workspace.tar"), "no valid first commit, or no files|has no files"),
    ],
)
async def test_an_invalid_save_changes_nothing(
    cloned: Session, repository: Repository, tmp_path: Path, change: Callable[[dict[str, bytes]], object], why: str
) -> None:
    await cloned.save(tmp_path / "save", workspace=True)
    path = crafted(tmp_path / "save", tmp_path / "crafted", change)
    await run(cloned, "!echo mine > mine")
    before = repository.git("for-each-ref")
    with pytest.raises(InvalidInputError, match=why):
        await cloned.load(path, workspace=True)
    assert await run(cloned, "!cat mine; ls -A") == "mine\n.git\na.txt\nmine"
    assert repository.git("for-each-ref") == before


async def test_an_archive_cannot_leave_the_sandbox(
    cloned: Session, native_host: Host, repository: Repository, tmp_path: Path
) -> None:
    await cloned.save(tmp_path / "save", workspace=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    entries = (
        entry(f"{outside}/absolute", size=1),
        entry("../" * 12 + str(outside)[1:] + "/up", size=1),
        entry("out", str(outside)),
        entry("out/through", size=1),
        entry(".git/objects/info/alternates", size=0),
        entry(".cellblock-branch-0123456789abcdef/f", size=1),
    )
    path = crafted(tmp_path / "save", tmp_path / "crafted", with_entries(*entries))
    try:
        async with await native_host.load(path, in_a_clone(repository.path), workspace=True) as session:
            await run(session, "1")
    except InvalidInputError as error:
        assert "cannot be loaded" in str(error)  # noqa: PT017  # both are safe
    assert not [*outside.iterdir()]


async def test_a_clone_that_is_too_large_is_neither_saved_nor_loaded(
    native_host: Host, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (repository.path / "large").write_bytes(os.urandom(3 << 20))
    repository.commit()
    (repository.path / "large").unlink()
    repository.commit()
    async with native_host.session(working_dir=repository.path, workspace="clone") as session:
        await session.save(tmp_path / "save", workspace=True)
        monkeypatch.setattr(clone, "MOST_SAVED", 1 << 20)
        with pytest.raises(InvalidInputError, match=r"over the limit of a clone|too large"):  # its history
            await session.save(tmp_path / "second", workspace=True)
        await run(session, "open('large', 'wb').write(bytes(3 << 20))")
        with pytest.raises(InvalidInputError, match="the files of the clone exceed 1 MiB"):
            await session.save(tmp_path / "second", workspace=True)
        assert not (tmp_path / "second").exists()
        with pytest.raises(InvalidInputError, match="the files of the clone exceed 1 MiB"):
            await session.load(tmp_path / "save", workspace=True)
        assert await run(session, "!ls") == "a.txt\nlarge"


def test_the_first_commit_of_an_earlier_version_is_that_of_its_reference(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cellblock.host.clones.pins import Pin
    from cellblock.host.clones.project import Project
    from cellblock.host.place import NO_PLACES

    monkeypatch.setenv("CELLBLOCK_HOME", str(tmp_path / "home"))
    pin = Pin(Project(str(repository.path), f"{repository.path}/.git"), "/tmp/x-packages-7", NO_PLACES)
    (tmp_path / "home/clones").mkdir(parents=True)
    (tmp_path / "home/clones/7").write_text(json.dumps([str(repository.path), f"{repository.path}/.git", pin.ref]))
    repository.git("update-ref", pin.ref, "HEAD")
    assert pin.base() == repository.git("rev-parse", "HEAD")
