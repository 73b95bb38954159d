"""What init does for a process whose filter asks it: with real filters, and without Landlock around."""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import pytest

from cellblock.launch.init.supervisor import Supervisor
from cellblock.walls.linux import abi, seccomp, undivided
from cellblock.walls.linux.syscall import prctl
from cellblock.walls.sandbox.confine import _filter_with

# For the oldest Landlock, for which init does most.
PROGRAM = seccomp.program(os.uname().machine, False, instead=undivided.instead(1))


def supervised(*actions: Callable[[], object], tops: Sequence[object] = (), ports: Collection[int] = ()) -> list[str]:
    """Do things in a child whose filter asks this process; return the names of their errors, which may be empty."""
    poll = select.poll()
    supervisor = Supervisor(poll)
    supervisor.writable, supervisor.ports = [*map(str, tops)], set(ports)
    theirs = supervisor.expect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = []
        try:
            prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            _filter_with(theirs, PROGRAM)
            for action in actions:
                try:
                    action()
                    said.append("")
                except OSError as error:
                    said.append(errno.errorcode[error.errno or 0])
        finally:
            os.write(writer, " ".join(["said", *said]).encode())
            os._exit(0)
    theirs.close()
    os.close(writer)
    poll.register(reader, select.POLLIN)
    ended = False
    while not ended or supervisor._listeners:
        for descriptor, event in poll.poll(10_000):
            if descriptor in supervisor:
                supervisor.serve(descriptor, event)
            else:
                ended = True
                poll.unregister(reader)
                os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read().split(" ")[1:]


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A directory in which files may be changed, with a file, and a file elsewhere."""
    (ours := tmp_path / "ours").mkdir()
    for place in (ours / "file", tmp_path / "other"):
        place.touch(0o600)
        os.utime(place, (1, 1))
    return ours, ours / "file", tmp_path / "other"


def test_modes_and_times_change_where_files_may_be_changed(places: tuple[Path, Path, Path]) -> None:
    ours, file, other = places
    assert supervised(lambda: os.chmod(file, 0o750), lambda: os.utime(file, (3, 4)), tops=[ours]) == ["", ""]
    assert (file.stat().st_mode & 0o777, file.stat().st_mtime) == (0o750, 4)
    refused = supervised(
        lambda: os.chmod(other, 0o777),
        lambda: os.chmod(ours / ".." / "other", 0o777),
        lambda: os.chmod(f"{ours}/../ours/../other", 0o777),
        lambda: os.fchmod(os.open(other, os.O_RDONLY), 0o777),
        lambda: os.utime(other, (3, 4)),
        lambda: os.utime(os.open(other, os.O_RDONLY), (3, 4)),
        lambda: os.chmod(file, 0o2750),
        tops=[ours],
    )
    assert refused == ["EPERM"] * 7
    assert (other.stat().st_mode & 0o777, other.stat().st_mtime) == (0o600, 1)


def test_owners_stay_what_they_are(places: tuple[Path, Path, Path]) -> None:
    ours, file, other = places
    (ours / "link").symlink_to("file")
    uid, gid = file.stat().st_uid, file.stat().st_gid
    same = supervised(
        lambda: os.chown(file, uid, gid),
        lambda: os.chown(file, -1, gid),
        lambda: os.lchown(ours / "link", uid, -1),
        lambda: os.fchown(os.open(file, os.O_RDONLY), uid, gid),
        lambda: os.chown("file", uid, gid, dir_fd=os.open(ours, os.O_PATH), follow_symlinks=False),
        tops=[ours],
    )
    assert same == [""] * 5
    refused = supervised(
        lambda: os.chown(file, uid + 1, gid),
        lambda: os.chown(file, uid, gid + 1),
        lambda: os.fchown(os.open(file, os.O_RDONLY), uid, gid + 1),
        lambda: os.chown(other, uid, gid),
        tops=[ours],
    )
    assert refused == ["EPERM"] * 4
    assert (file.stat().st_uid, file.stat().st_gid) == (uid, gid)


def test_a_directory_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "workers").touch(0o600)
    assert supervised(lambda: os.chmod(tmp_path / "workers", 0o777), tops=[tmp_path / "work"]) == ["EPERM"]


def test_links_are_followed_as_the_caller_asks_and_magic_ones_never(places: tuple[Path, Path, Path]) -> None:
    ours, _, other = places
    (ours / "out").symlink_to(other)
    found = supervised(
        lambda: os.chmod(ours / "out", 0o777),
        lambda: os.utime(ours / "out", (1, 1), follow_symlinks=False),
        lambda: os.chmod("/proc/self/cwd", 0o777),
        tops=[ours],
    )
    assert found == ["EPERM", "", "ELOOP"]


def test_a_descriptor_may_be_named_by_its_path(places: tuple[Path, Path, Path]) -> None:
    """As the C library does for the mode of what may be a link, and so tar for every directory."""
    ours, file, other = places

    def change(path: Path) -> None:
        os.chmod(f"/proc/self/fd/{os.open(path, os.O_PATH)}", 0o640)

    found = supervised(lambda: change(file), lambda: change(other), lambda: os.chmod("/proc/self/fd/999", 0o640), tops=[ours])
    assert found[:2] == ["", "EPERM"]
    assert found[2] in ("ENOENT", "EBADF")
    assert [path.stat().st_mode & 0o777 for path in (file, other)] == [0o640, 0o600]


def test_errors_are_those_of_the_call_itself(tmp_path: Path) -> None:
    paths = (b"", b"/none", b"x" * 5000)
    found = supervised(*(functools.partial(os.chmod, path, 0o700) for path in paths), tops=[tmp_path])
    assert found == ["ENOENT", "ENOENT", "ENAMETOOLONG"]


def test_a_connection_to_what_init_listens_on_is_made_and_no_other() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as other:
        port = listener.getsockname()[1]

        def talk() -> None:
            with socket.socket() as made:
                made.settimeout(5)
                made.connect(("127.0.0.1", port))
                made.sendall(b"hello")
                assert made.gettimeout() == 5

        def serve() -> None:
            with listener.accept()[0] as connection:
                heard.append(connection.recv(10))

        heard: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        assert supervised(talk, ports={port}) == [""]
        thread.join()
        assert heard == [b"hello"]
        wrong = other.getsockname()[1]
        refused = supervised(
            lambda: socket.socket().connect(("127.0.0.1", wrong)),
            lambda: socket.socket().connect(("127.0.0.2", port)),
            lambda: socket.socket(socket.AF_INET6).connect(("::1", port)),
            lambda: socket.socketpair()[0].connect("/none"),
            ports={port},
        )
        assert refused == ["ECONNREFUSED", "ENETUNREACH", "ENETUNREACH", "ENETUNREACH"]
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
