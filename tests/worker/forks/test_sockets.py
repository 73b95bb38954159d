"""Sockets that a copy may not share with its original."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts import Script
from suite import first_quick

_IN_A_COPY = """
import os, select, socket, sys
from cellblock.worker.forks import sockets as fork_sockets
from cellblock.worker.forks.safety import *
fork_sockets.note_pairs()
{before}
refusal()
prepare()
if not (child := os.fork()):
    part(2)
    part(2)  # as in a kernel that is made of a copy
    told = repair()
    {inside}
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
{after}
"""


@pytest.fixture
def told(printed: Script) -> Callable[..., list[str]]:
    """Return what a script prints whose process is copied."""
    return lambda before, inside, after="": printed(_IN_A_COPY.format(before=before, inside=inside, after=after))


@pytest.mark.parametrize("kind", first_quick(["SOCK_STREAM", "SOCK_DGRAM", "SOCK_SEQPACKET"]))
def test_a_pair_of_sockets_becomes_another_pair(told: Callable[..., list[str]], kind: str) -> None:
    before = f"""
one, other = socket.socketpair(socket.AF_UNIX, socket.{kind})
same = one.dup()
other.setblocking(False)
"""
    inside = """
    same.send(b"copy")
    print(told, other.recv(9, socket.MSG_PEEK), other.getblocking(), os.get_inheritable(one.fileno()))
"""
    after = "print(select.select([other], [], [], 0)[0]); one.send(b'original'); print(other.recv(9))"
    assert told(before, inside, after) == ["[] b'copy' False False", "[]", "b'original'"]


def test_what_was_in_a_pair_is_missed_aloud_and_stays_in_the_original(told: Callable[..., list[str]]) -> None:
    before = "one, other = socket.socketpair(); one.send(b'kept'); empty = socket.socketpair()"
    inside = "print(told, select.select([other], [], [], 0)[0])"
    missed, kept = told(before, inside, "print(other.recv(9))")
    assert missed == "['A socket pair lost unread data: send it again.'] []"
    assert kept == "b'kept'"


def test_an_end_whose_other_one_is_elsewhere_looks_closed(told: Callable[..., list[str]]) -> None:
    before = """
import multiprocessing
context = multiprocessing.get_context("fork")
here, there = context.Pipe()
process = context.Process(target=lambda: there.send(there.recv()))
process.start()
there.close()
closed, gone = socket.socketpair()
gone.close()
"""
    inside = "print(told[0], here.poll(0), closed.recv(1))"
    after = "here.send(1); print(here.recv()); process.join()"
    cut, original = told(before, inside, after)
    assert cut == "A socket connected to another process was closed: connect it again. True b''"
    assert original == "1"


def test_only_pairs_that_are_open_are_remembered(printed: Script) -> None:
    script = """
import socket
from cellblock.worker.forks import sockets as fork_sockets
fork_sockets.note_pairs()
kept = socket.socketpair()
for _ in range(3000):
    one, other = socket.socketpair()
    one.close(), other.close()
print(len(fork_sockets._ends) < 3000, all(os.fstat(end.fileno()).st_ino in fork_sockets._ends for end in kept))
"""
    assert printed("import os" + script) == ["True True"]


def test_a_connection_that_is_kept_for_tool_calls_is_closed_without_a_word(told: Callable[..., list[str]]) -> None:
    before = """
from types import SimpleNamespace
from cellblock.tools.calling import pool
servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
kept, own = (socket.create_connection(server.getsockname()) for server in servers)
state = pool._state  # which stays: in a kernel's copy no handlers of forks run
state.idle[servers[0].getsockname()] = [(0.0, SimpleNamespace(fileno=kept.fileno, close=lambda: None))]
pool._State = lambda: state
"""
    (said,) = told(before, "print(told, kept.recv(1), own.recv(1))")
    assert (said.count("The connection to"), said.count("No server listens on")) == (1, 2)
    assert said.endswith("b'' b''")
