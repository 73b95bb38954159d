"""input() and getpass() in a kernel: a question, or an immediate error."""

from __future__ import annotations

import builtins
import getpass
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from IPython.core.error import StdinNotImplementedError

from cellblock.wire.message_codec import encode
from cellblock.wire.messages import Command, Decided, Ended, InputReply, InputRequest, Message, Shutdown
from cellblock.wire.protocol import Conversation, Side, State
from cellblock.worker.channel import Channel
from cellblock.worker.outbox import Outbox
from cellblock.worker.requests import Requester


class Desk:
    """A kernel's end on which a cell runs, and the host's end."""

    def __init__(self) -> None:
        self.host, worker = socket.socketpair()
        self.host.settimeout(10)
        channel = Channel(worker)
        channel._conversation.state = State.BUSY
        self.outbox = Outbox()
        self.outbox._channel, self.outbox.forked = channel, False
        self.put_back: list[Message] = []
        self.asker = Requester(channel, self.outbox, self.put_back.append)
        self.asker.allowed = True

    def answer(self, *messages: Message) -> None:
        """Have these lie in the channel when the question is asked."""
        self.host.sendall(b"".join(map(encode, messages)))

    def heard(self) -> list[Message]:
        """Return what the host has got."""
        self.outbox.settle()
        conversation = Conversation(Side.HOST)
        conversation.state = State.BUSY
        self.host.setblocking(False)
        try:
            return conversation.receive(self.host.recv(1 << 20))
        except BlockingIOError:
            return []

    def close(self) -> None:
        self.outbox.settle()
        self.host.close()
        assert self.outbox._channel is not None
        self.outbox._channel.close()
        self.outbox._channel, self.outbox.forked = None, True


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A cell that may ask."""
    monkeypatch.setattr(builtins, "input", builtins.input)
    monkeypatch.setattr(getpass, "getpass", getpass.getpass)
    desk = Desk()
    try:
        desk.asker.take_places()
        yield desk
    finally:
        desk.close()


def test_no_answer_is_the_end_of_the_input(desk: Desk) -> None:
    desk.answer(InputReply(1, None))
    with pytest.raises(EOFError, match="gave no answer"):
        input()


def test_a_host_that_has_gone_is_the_end_of_the_input(desk: Desk) -> None:
    desk.host.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        input()


def test_what_else_arrives_meanwhile_is_kept(desk: Desk) -> None:
    """A worker that is told to leave while a cell asks is closed by its host next, which ends the wait."""
    desk.answer(Shutdown())
    desk.host.shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        input()
    assert desk.put_back == [Shutdown()]


def test_a_prompt_of_any_length_can_be_asked(desk: Desk) -> None:
    desk.answer(InputReply(1, "x"))
    assert input("?" * 100_000) == "x"
    (request,) = [message for message in desk.heard() if isinstance(message, InputRequest)]
    assert len(request.prompt) == 4000


def refused(ask: Callable[[], str]) -> None:
    with pytest.raises(StdinNotImplementedError, match=r"not available.*set the value in the code instead"):
        ask()


def test_a_forked_child_may_not_ask(desk: Desk) -> None:
    desk.outbox.forked = True
    refused(input)
    desk.outbox.forked = False


def test_only_the_main_thread_may_ask(desk: Desk) -> None:
    thread = threading.Thread(target=refused, args=(input,))
    failures: list[object] = []
    hook, threading.excepthook = threading.excepthook, failures.append
    try:
        thread.start()
        thread.join()
    finally:
        threading.excepthook = hook
    assert failures == []
    assert desk.heard() == []


def test_a_decision_and_the_end_of_a_command_can_come_together(desk: Desk) -> None:
    desk.answer(Decided(1), Ended(1, 256, "/tmp/x"), Shutdown())
    number = desk.asker.command("shell", "ls", cwd="/", changes=("A=1",))
    assert desk.asker.outcome(number) == Ended(1, 256, "/tmp/x")
    assert desk.heard() == [Command(1, "shell", "ls", "/", (), ("A=1",))]
    assert desk.put_back == [Shutdown()]


def test_answers_to_other_questions_let_nothing_through(desk: Desk) -> None:
    desk.asker._number = 4
    desk.answer(Decided(4), Ended(5, 0), InputReply(5, "yes"), Decided(5, "no"))
    with pytest.raises(PermissionError, match="no"):
        desk.asker.command("shell", "ls")


def test_a_host_that_has_gone_lets_nothing_through(desk: Desk) -> None:
    desk.host.shutdown(socket.SHUT_WR)
    with pytest.raises(PermissionError, match="the host has ended"):
        desk.asker.command("shell", "ls")


def test_an_interrupt_waits_for_the_command_that_it_is_meant_for(desk: Desk, tmp_path: Path) -> None:
    kept = tmp_path / "output.out"
    kept.write_text("half")
    real, calls = desk.asker._channel.receive, iter([KeyboardInterrupt, KeyboardInterrupt, None])

    def receive(wait: bool = False) -> list[Message] | None:
        if (error := next(calls)) is not None:
            raise error
        desk.answer(Ended(1, 2, str(tmp_path / "output")))
        return real(wait)

    desk.asker._channel.receive = receive  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        desk.asker.outcome(1)
    assert not kept.exists()
