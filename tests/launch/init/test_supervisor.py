"""What init does for a process whose filter asks it: with real filters, and without Landlock around."""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cellblock.launch.init.supervisor import Supervisor
from cellblock.walls.linux import abi, seccomp, undivided
from cellblock.walls.linux.syscall import prctl
from cellblock.walls.sandbox.confine import _filter_with

# For the oldest Landlock, for which init does most.
PROGRAM = seccomp.program(os.uname().machine, False, instead=undivided.instead(1))


def supervised(action: Callable[[], object], tops: list[str], ports: set[int] = frozenset()) -> str:  # type: ignore[assignment]
    """Do something in a child whose filter asks this process; return the name of the error, or nothing."""
    poll = select.poll()
    supervisor = Supervisor(poll)
    supervisor.writable, supervisor.ports = tops, set(ports)
    theirs = supervisor.expect()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b""
        try:
            prctl(abi.PR_SET_NO_NEW_PRIVS, 1)
            _filter_with(theirs, PROGRAM)
            action()
        except OSError as error:
            said = errno.errorcode[error.errno or 0].encode()
        finally:
            os.write(writer, said)
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
        return file.read()


@pytest.mark.slow
def test_modes_and_times_change_where_files_may_be_changed(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    for place in (tmp_path / "ours" / "file", tmp_path / "other"):
        place.touch(0o600)
        os.utime(place, (1, 1))
    tops = [str(tmp_path / "ours")]
    assert supervised(lambda: os.chmod(tmp_path / "ours" / "file", 0o750), tops) == ""
    assert supervised(lambda: os.utime(tmp_path / "ours" / "file", (3, 4)), tops) == ""
    found = (tmp_path / "ours" / "file").stat()
    assert (found.st_mode & 0o777, found.st_mtime) == (0o750, 4)
    for change in (
        lambda: os.chmod(tmp_path / "other", 0o777),
        lambda: os.chmod(tmp_path / "ours" / ".." / "other", 0o777),
        lambda: os.chmod(f"{tmp_path}/ours/../ours/../other", 0o777),
        lambda: os.fchmod(os.open(tmp_path / "other", os.O_RDONLY), 0o777),
        lambda: os.utime(tmp_path / "other", (3, 4)),
        lambda: os.utime(os.open(tmp_path / "other", os.O_RDONLY), (3, 4)),
        lambda: os.chmod(tmp_path / "ours" / "file", 0o2750),
    ):
        assert supervised(change, tops) == "EPERM"
    found = (tmp_path / "other").stat()
    assert (found.st_mode & 0o777, found.st_mtime) == (0o600, 1)


def test_owners_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    file = tmp_path / "ours" / "file"
    (tmp_path / "ours" / "link").symlink_to("file")
    for place in (file, tmp_path / "other"):
        place.touch(0o600)
    uid, gid = file.stat().st_uid, file.stat().st_gid
    tops = [str(tmp_path / "ours")]
    for same in (
        lambda: os.chown(file, uid, gid),
        lambda: os.chown(file, -1, gid),
        lambda: os.lchown(tmp_path / "ours" / "link", uid, -1),
        lambda: os.fchown(os.open(file, os.O_RDONLY), uid, gid),
        lambda: os.chown("file", uid, gid, dir_fd=os.open(tmp_path / "ours", os.O_PATH), follow_symlinks=False),
    ):
        assert supervised(same, tops) == ""
    for change in (
        lambda: os.chown(file, uid + 1, gid),
        lambda: os.chown(file, uid, gid + 1),
        lambda: os.fchown(os.open(file, os.O_RDONLY), uid, gid + 1),
        lambda: os.chown(tmp_path / "other", uid, gid),
    ):
        assert supervised(change, tops) == "EPERM"
    assert (file.stat().st_uid, file.stat().st_gid) == (uid, gid)


def test_a_directory_whose_name_begins_alike_is_another(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "workers").touch(0o600)
    assert supervised(lambda: os.chmod(tmp_path / "workers", 0o777), [str(tmp_path / "work")]) == "EPERM"


def test_links_are_followed_as_the_caller_asks_and_magic_ones_never(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "other").touch(0o600)
    (tmp_path / "ours" / "out").symlink_to(tmp_path / "other")
    tops = [str(tmp_path / "ours")]
    assert supervised(lambda: os.chmod(tmp_path / "ours" / "out", 0o777), tops) == "EPERM"
    assert supervised(lambda: os.utime(tmp_path / "ours" / "out", (1, 1), follow_symlinks=False), tops) == ""
    assert supervised(lambda: os.chmod("/proc/self/cwd", 0o777), tops) == "ELOOP"


def test_a_descriptor_may_be_named_by_its_path(tmp_path: Path) -> None:
    """As the C library does for the mode of what may be a link, and so tar for every directory."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "file").touch(0o600)
    (tmp_path / "other").touch(0o600)

    def change(path: Path) -> None:
        os.chmod(f"/proc/self/fd/{os.open(path, os.O_PATH)}", 0o640)

    tops = [str(tmp_path / "ours")]
    assert supervised(lambda: change(tmp_path / "ours" / "file"), tops) == ""
    assert supervised(lambda: change(tmp_path / "other"), tops) == "EPERM"
    assert supervised(lambda: os.chmod("/proc/self/fd/999", 0o640), tops) in ("ENOENT", "EBADF")
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("ours/file", "other")] == [0o640, 0o600]


@pytest.mark.parametrize("path", [b"", b"/none", b"x" * 5000])
def test_errors_are_those_of_the_call_itself(path: bytes, tmp_path: Path) -> None:
    wanted = "ENAMETOOLONG" if len(path) > 4096 else "ENOENT"
    assert supervised(lambda: os.chmod(path, 0o700), [str(tmp_path)]) == wanted


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
        assert supervised(talk, [], {port}) == ""
        thread.join()
        assert heard == [b"hello"]
        wrong = other.getsockname()[1]
        assert supervised(lambda: socket.socket().connect(("127.0.0.1", wrong)), [], {port}) == "ECONNREFUSED"
        assert supervised(lambda: socket.socket().connect(("127.0.0.2", port)), [], {port}) == "ENETUNREACH"
        assert supervised(lambda: socket.socket(socket.AF_INET6).connect(("::1", port)), [], {port}) == "ENETUNREACH"
        assert supervised(lambda: socket.socketpair()[0].connect("/none"), [], {port}) == "ENETUNREACH"
        other.setblocking(False)
        with pytest.raises(BlockingIOError):
            other.accept()
