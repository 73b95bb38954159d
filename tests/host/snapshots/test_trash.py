"""The trash: what is moved there is kept whole, nobody outside can change it, and it is removed in time."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.errors import FilesError
from cellblock.host.snapshots import content, trash
from cellblock.host.snapshots.trash import Entry, Reason, Trash, copy_back, purge, purge_if_due
from cellblock.launch import leftovers

from .conftest import SECRET, before_call, look

DAY = 86_400.0
Take = Callable[..., Entry]


@pytest.fixture(autouse=True)
def home(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CELLBLOCK_HOME", str(place / "home"))
    return place / "home"


@pytest.fixture
def kept(workspace: Path) -> Trash:
    return Trash(str(workspace), "label")


@pytest.fixture
def take(kept: Trash, workspace: Path) -> Take:
    """Move things of the workspace to a new entry."""

    def take(*names: str, of: Trash = kept, whole: bool = True) -> Entry:
        entry = of.new(Reason("undo", 3))
        folder = os.open(workspace, os.O_RDONLY)
        try:
            for name in names:
                assert entry.take(folder, name, name) == whole
        finally:
            os.close(folder)
        return entry

    return take


def held(entry: Entry, of: Trash) -> Path:
    """Return where the files of an entry are."""
    return of.directory / entry.id / "files"


def put_back(entry: Entry, path: str, workspace: Path) -> None:
    folder = os.open(workspace, os.O_RDONLY)
    try:
        with entry.open(path) as (parent, name):
            copy_back(parent, name, folder, name)
    finally:
        os.close(folder)


# -- what is moved there -----------------------------------------------------------------------------------------------


def test_a_file_is_moved_with_its_mode_and_time(kept: Trash, take: Take, workspace: Path) -> None:
    path = workspace / "file"
    path.write_text("mine")
    path.chmod(0o640)
    os.utime(path, ns=(1, 123_456_789_000))
    before = look(workspace)
    entry = take("file")
    assert (look(workspace), entry.taken, look(held(entry, kept))) == ({}, ["file"], before)


def test_a_folder_is_moved_with_all_that_is_in_it(kept: Trash, take: Take, workspace: Path) -> None:
    (workspace / "d" / "inner" / "empty").mkdir(parents=True)
    (workspace / "d" / "inner" / "file").write_text("mine")
    (workspace / "d" / "link").symlink_to("nowhere")
    (workspace / "d" / "closed").mkdir()
    (workspace / "d" / "closed" / "file").write_text("in it")
    (workspace / "d" / "closed").chmod(0)
    entry = take("d")
    files = held(entry, kept)
    assert (files / "d" / "inner" / "file").read_text() == "mine"
    assert (files / "d" / "closed" / "file").read_text() == "in it"
    assert os.readlink(files / "d" / "link") == "nowhere"
    assert (files / "d" / "inner" / "empty").is_dir()
    # The folders stay for whoever moves them there: a process may have them open.
    assert {kind for kind, *_ in look(workspace).values()} == {"folder"}


def test_folders_fifos_and_sockets_come_back_with_their_modes(kept: Trash, take: Take, workspace: Path) -> None:
    for name in ("d", "d/private", "d/closed"):
        (workspace / name).mkdir()
        os.mkfifo(workspace / name / "fifo", 0o600)
        (workspace / name / "fifo").chmod(0o622)
        os.mknod(workspace / name / "socket", stat.S_IFSOCK | 0o600)
    for mode, name in ((0o750, "d"), (0o700, "d/private"), (0o555, "d/closed")):
        (workspace / name).chmod(mode)
    before = look(workspace)
    entry = take("d")
    assert look(held(entry, kept)) == before
    leftovers.remove_place(str(workspace / "d"))
    put_back(entry, "d", workspace)
    assert look(workspace) == before


@pytest.mark.parametrize(("names", "elsewhere"), [(["large"], False), (["large", "other"], False), (["large"], True)])
def test_a_large_file_with_one_name_is_linked_on_its_file_system(
    kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], elsewhere: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    monkeypatch.setattr(trash, "_LARGE", 3)
    (workspace / "large").write_text("large")
    for name in names[1:]:
        os.link(workspace / "large", workspace / name)
    inode = (workspace / "large").stat().st_ino
    with monkeypatch.context() as patched:
        if elsewhere:
            patched.setattr(os, "link", refuse)
        entry = take("large")
    moved = held(entry, kept) / "large"
    assert (moved.read_text(), moved.stat().st_ino == inode) == ("large", len(names) == 1 and not elsewhere)
    assert sorted(look(workspace)) == names[1:]


def test_a_large_file_whose_move_was_interrupted_is_moved_by_the_next_process(
    kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "_LARGE", 3)
    (workspace / "large").write_text("large")
    entry = take()
    files = held(entry, kept)
    files.mkdir(parents=True)
    os.link(workspace / "large", files / "large")
    folder = os.open(workspace, os.O_RDONLY)
    again = Entry.of([*entry.described])
    assert again.take(folder, "large", "large")
    os.close(folder)
    assert ((files / "large").read_text(), look(workspace)) == ("large", {})


def test_a_file_that_was_copied_by_a_killed_process_is_copied_again(kept: Trash, take: Take, workspace: Path) -> None:
    (workspace / "file").write_text("all of it")
    entry = take()
    held(entry, kept).mkdir(parents=True)
    (held(entry, kept) / "file").write_text("all")
    folder = os.open(workspace, os.O_RDONLY)
    assert entry.take(folder, "file", "file")
    os.close(folder)
    assert (held(entry, kept) / "file").read_text() == "all of it"


@pytest.mark.parametrize("times", [1, 100])
def test_a_file_that_is_written_to_meanwhile_is_copied_again(
    kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    copy, count = content.copy, 0

    def write(source: int, target: int, limit: int) -> tuple[bytes, int]:
        nonlocal count
        copied = copy(source, target, limit)
        if count < times:
            count += 1
            with (workspace / "log").open("a") as log:
                log.write("more")
        return copied

    monkeypatch.setattr(content, "copy", write)
    (workspace / "log").write_text("first")
    entry = take("log", whole=times == 1)
    if times == 1:
        assert ((held(entry, kept) / "log").read_text(), look(workspace)) == ("firstmore", {})
    else:
        assert (look(held(entry, kept)), [*look(workspace)], entry.taken) == ({}, ["log"], [])


def test_what_cannot_be_moved_stays(kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: int, target: int, limit: int) -> tuple[bytes, int]:
        if os.fstat(source).st_size == 3:
            raise OSError(errno.ENOSPC, "no space")
        return copy(source, target, limit)

    copy = content.copy
    monkeypatch.setattr(content, "copy", refuse)
    (workspace / "d").mkdir()
    (workspace / "d" / "a").write_text("a")
    (workspace / "d" / "b").write_text("bbb")
    (workspace / "d" / "c").write_text("c")
    entry = take("d", whole=False)
    assert sorted(look(held(entry, kept))) == ["d", "d/a", "d/c"]
    assert sorted(look(workspace)) == ["d", "d/b"]


def test_a_directory_that_cannot_be_made_takes_nothing(kept: Trash, take: Take, workspace: Path, home: Path) -> None:
    home.write_text("no directory")
    (workspace / "file").write_text("mine")
    entry = take("file", whole=False)
    assert (entry.taken, [*look(workspace)], kept.entries()) == ([], ["file"], [])


# -- attacks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", ["d", "d/inner", "d/inner/data"])
def test_a_link_that_takes_a_place_at_any_moment_leads_nowhere(
    kept: Trash, workspace: Path, outside: Path, swapped: str
) -> None:
    def swap() -> None:
        if not (workspace / swapped).exists():
            return
        (workspace / swapped).rename(workspace / "old")
        (workspace / swapped).symlink_to(outside / "data" if swapped.endswith("data") else outside)

    for number in range(1, 1000):
        (workspace / "d" / "inner").mkdir(parents=True)
        (workspace / "d" / "inner" / "data").write_text("mine")
        (workspace / "d" / "folder").mkdir()
        (workspace / "d" / "folder" / "data").write_text("mine")
        entry, folder = kept.new(Reason("undo")), os.open(workspace, os.O_RDONLY)
        with before_call(number, swap) as came:
            entry.take(folder, "d", "d")
        os.close(folder)
        for path in held(entry, kept).rglob("data"):
            assert path.is_symlink() or path.read_bytes() != SECRET
        for one in (workspace / "d", workspace / "old"):
            one.unlink() if one.is_symlink() or one.is_file() else leftovers.remove_place(str(one))
        if not came():
            return
    raise AssertionError("it has not come to an end")


def test_names_are_taken_as_they_are(kept: Trash, take: Take, workspace: Path) -> None:
    names = ["new\nline", os.fsdecode(b"\xff\xfe"), "\x1b[31m", "about.json", "..."]
    for name in names:
        (workspace / name).write_text("mine")
    entry = take(*names)
    assert sorted(look(held(entry, kept))) == sorted(names)
    assert sorted(file.path for file in kept.entries()[0].listed().files) == sorted(names)
    for name in names:
        assert kept.find("", name).id == entry.id
        put_back(entry, name, workspace)
    assert sorted(look(workspace)) == sorted(names)


def test_folders_that_are_nested_too_deep_stay(
    kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trash, "_DEEPEST", 3)
    deep = workspace / "1" / "2" / "3" / "4"
    (deep / "5").mkdir(parents=True)
    for folder in (deep.parent, deep, deep / "5"):
        (folder / "file").write_text("mine")
    entry = take("1", whole=False)
    assert (held(entry, kept) / "1" / "2" / "3" / "4" / "file").exists()
    assert not (held(entry, kept) / "1" / "2" / "3" / "4" / "5").exists()
    assert [path for path, (kind, *_) in look(workspace).items() if kind == "file"] == ["1/2/3/4/5/file"]


def test_the_deepest_folders_that_are_taken_come_back(kept: Trash, take: Take, workspace: Path) -> None:
    path = "/".join(["d"] * trash._DEEPEST)
    (workspace / path).mkdir(parents=True)
    (workspace / path / "file").write_text("mine")
    entry = take("d")
    leftovers.remove_place(str(workspace / "d"))
    put_back(entry, "d", workspace)
    assert (workspace / path / "file").read_text() == "mine"
    assert [file.path for file in entry.listed().files] == [f"{path}/file"]


def test_who_has_a_file_open_cannot_change_the_copy(kept: Trash, take: Take, workspace: Path) -> None:
    (workspace / "file").write_text("mine")
    with (workspace / "file").open("a") as open_file:
        entry = take("file")
        open_file.write("changed")
    assert (held(entry, kept) / "file").read_text() == "mine"


def test_who_has_a_folder_open_does_not_come_into_the_trash(kept: Trash, take: Take, workspace: Path) -> None:
    (workspace / "d").mkdir()
    (workspace / "d" / "file").write_text("mine")
    folder = os.open(workspace / "d", os.O_RDONLY)
    entry = take("d")
    assert os.path.samestat(os.stat("..", dir_fd=folder), workspace.stat())
    assert os.listdir(folder) == []
    assert (held(entry, kept) / "d" / "file").exists()
    os.close(folder)


@pytest.mark.parametrize("path", ["../about.json", "..", ".", "d/../../about.json", "/etc/passwd", "d/", "d//file", ""])
def test_no_path_leads_out_of_an_entry(kept: Trash, take: Take, workspace: Path, path: str) -> None:
    (workspace / "d").mkdir()
    (workspace / "d" / "file").write_text("mine")
    entry = take("d")
    with pytest.raises(FileNotFoundError), entry.open(path):
        pass
    if path:
        with pytest.raises(FilesError, match="has no"):
            kept.find("", path)


# -- what is there -----------------------------------------------------------------------------------------------------


def test_an_entry_says_what_it_holds(kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "_MOST_LISTED", 2)
    (workspace / "d").mkdir()
    for name, text in {"a": "1", "b": "22", "c": "333"}.items():
        (workspace / "d" / name).write_text(text)
    began = time.time()
    entry = take("d")
    (listed,) = [one.listed() for one in kept.entries()]
    assert [(file.path, file.size) for file in listed.files] == [("d/a", 1), ("d/b", 2)]
    assert (listed.id, listed.operation, listed.cell, listed.more) == (entry.id, "undo", 3, 1)
    assert began <= listed.at <= time.time()
    assert listed.expires == pytest.approx(listed.at + 7 * DAY)


def test_entries_are_found_by_their_ids_and_by_what_they_hold(kept: Trash, take: Take, workspace: Path) -> None:
    entries = list[Entry]()
    for names in (["a"], ["a", "b"], ["c"]):
        for name in names:
            (workspace / name).write_text(str(len(entries)))
        entries.append(take(*names))
        time.sleep(0.002)  # an id sorts by milliseconds
    first, second, third = (entry.id for entry in entries)
    assert [entry.id for entry in kept.entries()] == [third, second, first]
    assert kept.find("", "").id == third
    assert kept.find("", "a").id == second
    assert kept.find(first, "a").id == first
    assert kept.find(first, "").id == first
    for entry, path in [(first, "b"), ("", "d"), ("none", ""), ("../x", "a")]:
        with pytest.raises(FilesError, match="has no"):
            kept.find(entry, path)
    with pytest.raises(FilesError, match="has no"):
        Trash(str(workspace), "another").find("", "")


def test_what_is_copied_back_is_as_it_was_and_stays_in_the_trash(kept: Trash, take: Take, workspace: Path) -> None:
    (workspace / "d" / "empty").mkdir(parents=True)
    (workspace / "d" / "file").write_text("mine")
    (workspace / "d" / "file").chmod(0o700)
    os.utime(workspace / "d" / "file", ns=(1, 987_654_321_000))
    (workspace / "d" / "link").symlink_to("file")
    before = {name: entry for name, entry in look(workspace).items() if entry[0] != "folder"}
    entry = take("d")
    there = look(held(entry, kept))
    leftovers.remove_place(str(workspace / "d"))
    put_back(entry, "d", workspace)
    after = look(workspace)
    assert {name: one for name, one in after.items() if one[0] != "folder"} == before
    assert (workspace / "d" / "empty").is_dir()
    assert look(held(entry, kept)) == there
    with pytest.raises(FileExistsError):
        put_back(entry, "d", workspace)
    assert look(workspace) == after


def test_a_file_that_its_owner_may_not_read_is_moved_and_comes_back(kept: Trash, take: Take, workspace: Path) -> None:
    """As an ordinary user: root may read everything."""
    path, other = workspace / "file", workspace / "other"
    path.write_text("mine")
    other.hardlink_to(path)
    path.chmod(0)
    entry = take("file")
    assert (path.exists(), stat.S_IMODE(other.stat().st_mode)) == (False, 0)
    put_back(entry, "file", workspace)
    assert stat.S_IMODE(path.stat().st_mode) == 0
    path.chmod(0o600)
    assert path.read_text() == "mine"


def test_an_entry_that_was_not_described_is_found(kept: Trash, take: Take, workspace: Path) -> None:
    for about in (None, "", "{"):
        (workspace / "file").write_text("mine")
        entry = take("file")
        path = kept.directory / entry.id / "about.json"
        path.unlink() if about is None else path.write_text(about)
        (listed,) = [one.listed() for one in kept.entries()]
        assert (listed.operation, [file.path for file in listed.files]) == ("", ["file"])
        os.utime(kept.directory / entry.id, (time.time() - 8 * DAY,) * 2)
        purge()
        assert kept.entries() == []


def test_another_session_takes_over_what_there_is(kept: Trash, take: Take, workspace: Path) -> None:
    other = Trash(str(workspace), "branch")
    kept.take_over(other)
    (workspace / "mine").write_text("mine")
    (workspace / "theirs").write_text("theirs")
    own, taken = take("mine"), take("theirs", of=other)
    kept.take_over(other)
    assert {entry.id for entry in kept.entries()} == {own.id, taken.id}
    assert (held(taken, kept) / "theirs").read_text() == "theirs"
    assert other.entries() == []


# -- what is removed ---------------------------------------------------------------------------------------------------


def test_entries_expire(kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    purge()  # there is no trash
    monkeypatch.setenv("CELLBLOCK_TRASH_DAYS", "2")
    (workspace / "file").write_text("mine")
    take("file")
    now = time.time()
    for days, there in [(1.9, 1), (2.1, 0)]:
        monkeypatch.setattr(time, "time", lambda days=days: now + days * DAY)
        purge()
        assert len(kept.entries()) == there
    assert not kept.directory.exists()


def test_the_clock_that_was_wrong_keeps_nothing_for_ever(
    kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace / "file").write_text("mine")
    now = time.time()
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time", lambda: now + 20_000 * DAY)
        take("file")
    purge()
    assert kept.entries() == []


def test_the_session_with_most_loses_its_oldest_but_never_its_newest(
    kept: Trash, take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(size: int, of: Trash) -> str:
        (workspace / "file").write_bytes(b"x" * size)
        time.sleep(0.002)
        return take("file", of=of).id

    def ids(of: Trash) -> list[str]:
        return [entry.id for entry in of.entries()][::-1]

    other = Trash(str(workspace), "other")
    many, few = [fill(1000, kept) for _ in range(4)], [fill(1000, other) for _ in range(2)]
    for most, left, of_other in [(6000, many, few), (5999, many[1:], few), (3500, many[2:], few[1:]), (1, many[3:], few[1:])]:
        monkeypatch.setenv("CELLBLOCK_TRASH_BYTES", str(most))
        purge()
        assert (ids(kept), len(ids(other))) == (left, len(of_other)), most
    assert ids(other) == few[1:]


def test_the_trash_is_purged_now_and_then_and_when_much_was_added(
    take: Take, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each purge walks through the whole trash of the user, which would make every undo slower."""
    purges: list[str] = []
    monkeypatch.setattr(trash, "run_aside", lambda _, name: purges.append(name))
    monkeypatch.setattr(trash, "_purges", trash._Purges())
    monkeypatch.setenv("CELLBLOCK_TRASH_BYTES", "16000")

    def purged(size: int) -> int:
        (workspace / "file").write_bytes(b"x" * size)
        take("file")
        purge_if_due()
        return len(purges)

    assert [purged(size) for size in (1, 400, 400, 400, 400)] == [1, 1, 1, 2, 2]
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert purged(1) == 3
