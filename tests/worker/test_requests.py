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
from cellblock.wire.messages import Command, Decided, Ended, InputReply, InputRequest, Message, Shutdown, Stream
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


def test_a_question_is_answered_and_both_are_shown(desk: Desk) -> None:
    desk.answer(InputReply(1, "Ada"))
    assert input("name? ") == "Ada"
    *shown, last = desk.heard()
    assert shown == [Stream("stdout", b"name? "), InputRequest(1, "name? ", False)]
    assert last == Stream("stdout", b"Ada\n")


def test_a_password_is_not_shown(desk: Desk) -> None:
    desk.answer(InputReply(1, "swordfish"))
    assert getpass.getpass() == "swordfish"
    heard = desk.heard()
    assert InputRequest(1, "Password: ", True) in heard
    assert "swordfish" not in str(heard)
    assert heard[-1] == Stream("stdout", b"********\n")


def test_questions_are_counted(desk: Desk) -> None:
    for number, text in enumerate(["a", "", "é"], start=1):
        desk.answer(InputReply(number, text))
        assert input() == text


def test_an_answer_to_a_question_that_was_withdrawn_is_ignored(desk: Desk) -> None:
    desk.asker._number = 1
    desk.answer(InputReply(1, "late"), InputReply(2, "right"))
    assert input() == "right"


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


@pytest.mark.parametrize("ask", [lambda: input("name? "), lambda: getpass.getpass()])
def test_where_nobody_answers_asking_is_an_immediate_error(desk: Desk, ask: Callable[[], str]) -> None:
    desk.asker.allowed = False
    refused(ask)
    assert desk.heard() == []


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


def test_an_interrupt_ends_the_wait(desk: Desk) -> None:
    def receive(wait: bool = False) -> None:
        raise KeyboardInterrupt

    desk.asker._channel.receive = receive  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        input("name? ")
    del desk.asker._channel.receive
    desk.answer(InputReply(1, "late"), InputReply(2, "right"))
    assert input() == "right"


def test_a_decision_and_the_end_of_a_command_can_come_together(desk: Desk) -> None:
    desk.answer(Decided(1), Ended(1, 256, "/tmp/x"), Shutdown())
    number = desk.asker.command("shell", "ls", cwd="/", changes=("A=1",))
    assert desk.asker.outcome(number) == Ended(1, 256, "/tmp/x")
    assert desk.heard() == [Command(1, "shell", "ls", "/", (), ("A=1",))]
    assert desk.put_back == [Shutdown()]


def test_a_refusal_is_an_error_with_its_words(desk: Desk) -> None:
    desk.answer(Decided(1, "the command was rejected"))
    with pytest.raises(PermissionError, match="the command was rejected"):
        desk.asker.command("shell", "ls")


def test_answers_to_other_questions_let_nothing_through(desk: Desk) -> None:
    desk.asker._number = 4
    desk.answer(Decided(4), Ended(5, 0), InputReply(5, "yes"), Decided(5, "no"))
    with pytest.raises(PermissionError, match="no"):
        desk.asker.command("shell", "ls")


def test_a_host_that_has_gone_lets_nothing_through(desk: Desk) -> None:
    desk.host.shutdown(socket.SHUT_WR)
    with pytest.raises(PermissionError, match="the host has ended"):
        desk.asker.command("shell", "ls")


def test_a_command_that_cannot_be_shown_as_it_is_is_not_asked_for(desk: Desk) -> None:
    for text in ("\udcff", "x" * (1 << 20) + "x"):
        with pytest.raises(ValueError, match="approval of this command is not possible"):
            desk.asker.command("shell", text)
    assert desk.heard() == []


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
