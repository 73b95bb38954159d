"""Where the daemon is found: nobody else reaches it, and nobody else can stand in for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock.errors import DaemonError
from cellblock.service.daemon.place import Place
from cellblock.service.daemon.starting import connect_or_start


def test_the_directory_is_for_this_user_alone(tmp_path: Path) -> None:
    place = Place(tmp_path / "above" / "state")
    place.prepare()
    assert place.directory.stat().st_mode & 0o777 == 0o700
    place.directory.chmod(0o755)
    place.prepare()
    assert place.directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(DaemonError, match="chmod 700"):
        Place(tmp_path).prepare()
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(DaemonError, match="another user"):
        Place(tmp_path).prepare()


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DaemonError, match="cannot be used"):
        Place(tmp_path / "file").prepare()


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.starting.mkdir()  # as good as a disk that is read-only: there can be no lock
    with pytest.raises(DaemonError, match="cannot be used for the daemon: Is a directory; CELLBLOCK_HOME can name another"):
        connect_or_start(place)


def test_the_socket_is_for_this_user_alone_and_can_have_a_long_path(tmp_path: Path) -> None:
    place = Place(tmp_path / ("a" * 120))
    place.prepare()
    assert place.connect() is None
    with place.listen():
        assert place.socket.stat().st_mode & 0o077 == 0
        found = place.connect()
        assert found is not None
        found.close()
