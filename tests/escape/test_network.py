"""Attacks 19 and 31: what of the network a session without one can reach, and what of other sessions and of the host."""

from __future__ import annotations

import shutil
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from cellblock import Host, Session
from cellblock.walls.sandbox.policy import Filesystem, Policy
from cells import ok, value

from .conftest import armed_session

CONNECT = """
import socket
def connect(family, kind, address):
    with socket.socket(family, kind) as it:
        it.settimeout(5)
        got = answer(it.connect, address)
        return answer(it.send, b'x') if got is None else got
"""


@pytest.mark.parametrize("address", ["8.8.8.8", "169.254.169.254", "10.0.0.1", "192.168.0.1", "172.17.0.1", "255.255.255.255"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
async def test_no_address_can_be_reached(cell: Session, address: str, kind: str) -> None:
    assert await value(cell, f"{CONNECT}\nconnect(socket.AF_INET, socket.{kind}, ('{address}', 53))") == "ENETUNREACH"


@pytest.mark.parametrize("address", ["2001:4860:4860::8888", "fe80::1", "fd00:ec2::254", "::ffff:8.8.8.8"])
@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
async def test_no_address_of_version_6_can_be_reached(cell: Session, address: str, kind: str) -> None:
    answered = await value(cell, f"{CONNECT}\nconnect(socket.AF_INET6, socket.{kind}, ('{address}', 53))")
    # A link-local address needs an interface, which EINVAL says; without IPv6 there is no such address at all.
    assert answered in (("EINVAL",) if address.startswith("fe80") else ("ENETUNREACH", "EADDRNOTAVAIL"))


async def test_no_name_is_resolved(cell: Session) -> None:
    code = """
import socket
try:
    socket.getaddrinfo('example.com', 80)
except socket.gaierror as error:
    found = error.errno
found
"""
    assert await value(cell, code) in (socket.EAI_AGAIN, socket.EAI_NONAME)


async def test_the_hosts_loopback_is_not_the_sessions(cell: Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert (
            await value(cell, f"{CONNECT}\nconnect(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {port}))")
            == "ECONNREFUSED"
        )


async def test_the_hosts_abstract_sockets_are_not_the_sessions(cell: Session) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0cellblock-escape-test")
        server.listen()
        assert (
            await value(cell, f"{CONNECT}\nconnect(socket.AF_UNIX, socket.SOCK_STREAM, '\\0cellblock-escape-test')")
            == "ECONNREFUSED"
        )


async def test_loopback_works_within_the_session(jail: Session) -> None:
    code = """
import socket
with socket.create_server(('127.0.0.1', 0)) as server, socket.create_connection(server.getsockname()) as client:
    accepted, _ = server.accept()
    client.sendall(b'hello')
    got = accepted.recv(5)
    accepted.close()
got
"""
    assert await value(jail, code) == b"hello"


async def test_another_sessions_listener_and_workspace_are_out_of_reach(
    attacked_host: Host, jail: Session, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("theirs")
    async with attacked_host.session(working_dir=theirs, images_dir=tmp_path / "images") as other:
        port = await value(other, "import socket\nserver = socket.create_server(('127.0.0.1', 0))\nserver.getsockname()[1]")
        await ok(other, "local = socket.socket(socket.AF_UNIX); local.bind('\\0theirs'); local.listen()")
        assert (
            await value(jail, f"{CONNECT}\nconnect(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {port}))")
            == "ECONNREFUSED"
        )
        assert await value(jail, "connect(socket.AF_UNIX, socket.SOCK_STREAM, '\\0theirs')") == "ECONNREFUSED"
        assert await value(jail, f"[read('{theirs}/file'), read('../theirs/file')]") == ["ENOENT"] * 2
        # The same path is in the session's own /tmp, or nowhere.
        assert await value(jail, f"[write('{theirs}/file', 'mine')]") in ([None], ["EROFS"], ["EACCES"])
        assert await value(other, "open('file').read()") == "theirs"


async def test_shared_memory_and_queues_are_each_sessions_own(attacked_host: Host, jail: Session, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    async with armed_session(attacked_host, theirs) as other:
        make = "[call(NR['shmget'], 4711, 4096, 0o1600) != 'ENOENT', call(NR['msgget'], 4711, 0o1600) != 'ENOENT']"
        assert await value(other, make) == [True, True]
        await ok(
            other, "from multiprocessing.shared_memory import SharedMemory; it = SharedMemory('theirs', create=True, size=1)"
        )
        code = """
from multiprocessing.shared_memory import SharedMemory
[call(NR['shmget'], 4711, 4096, 0o600), call(NR['msgget'], 4711, 0o600), answer(SharedMemory, 'theirs')]
"""
        assert await value(jail, code) == ["ENOENT"] * 3
        await ok(other, "it.close(); it.unlink()")


@pytest.mark.slow
async def test_where_everything_can_be_read_sockets_in_it_cannot_be_talked_to(attacked_host: Host, workspace: Path) -> None:
    """A read-only mount does not keep anybody from connecting, so that there are no such sockets."""
    policy = replace(Policy(), filesystem=Filesystem(read=("/",)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        place = Path(tempfile.mkdtemp())  # the path of a socket has at most 107 bytes
        server.bind(str(place / "socket"))
        try:
            async with (
                Host(isolate="native", policy=policy) as host,
                armed_session(host, workspace) as session,
            ):
                code = """
import socket
made = [answer(socket.socket, socket.AF_UNIX, kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)]
made + [answer(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)]
"""
                assert await value(session, code) == ["EPERM"] * 4
                assert (
                    await value(
                        session, "len([*socket.socketpair(), *socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)])"
                    )
                    == 4
                )
        finally:
            shutil.rmtree(place)
