"""Questions of an execution to the user: lines for `input()`, and decisions about calls."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from cellblock.common.terminal import printable
from cellblock.errors import InvalidInputError, StateError
from cellblock.fronts.cli.daemon_access import connect
from cellblock.fronts.cli.forms import fields_of, read_line
from cellblock.fronts.cli.output import painted
from cellblock.fronts.cli.problems import say
from cellblock.operations.approvals import Decide
from cellblock.operations.executions import Answer
from cellblock.service.daemon.daemon_connection import SessionConnection

_PIECE = 64 * 1024
_ALWAYS = {"c": "call", "t": "tool"}
_KINDS = {"shell": "command"}
_STILL = 0.7
"""Seconds for which answers are ignored after a question took the place of another: they may be meant for that one."""

_ELSEWHERE = {"accepted": "another client has allowed it", "rejected": "another client has denied it"}


def say_what_waits(data: Mapping[str, Any]) -> None:
    """Print the pending decision, and how to decide."""
    if data["kind"] == "question":
        say(f"cellblock: waits for an answer: {printable(data['text'], lines=False)}")
        say(f"  {fields_of(data)}")
        say(f"  answer it: cellblock approvals allow {data['id']} --answer JSON")
        say(f"  refuse: cellblock approvals deny {data['id']}")
        return
    say(f"cellblock: waits for a decision: {printable(data['text'], lines=False)}")
    say(f"  allow it: cellblock approvals allow {data['id']}    deny it: cellblock approvals deny {data['id']}")


class Questions:
    """The queue of open questions. A typed line answers the first.

    Standard input is read only when it is ready, so that an answer from elsewhere, or Ctrl-C, can withdraw a question.
    """

    def __init__(self) -> None:
        self._open: deque[_Question] = deque()
        self._typed = b""
        self._control: SessionConnection | None = None
        self._echo: list[Any] | None = None
        self._moved = -_STILL

    @property
    def open(self) -> bool:
        """Whether a question is open."""
        return bool(self._open)

    @property
    def has_line(self) -> bool:
        """Whether buffered input can answer the first question: lines of a pipe arrive together."""
        return self.open and b"\n" in self._typed

    def ask_for_line(self, execution: str, *, password: bool) -> None:
        """Ask for a line, whose prompt was already shown."""
        self._add(_Question(execution=execution, password=password))

    def ask_about(self, approval: Mapping[str, Any]) -> None:
        """Ask for a decision; without a terminal, print how to decide elsewhere."""
        if sys.stdin.isatty():
            self._add(_Question(approval=approval))
        else:
            say_what_waits(approval)

    def withdraw(self, decided: Mapping[str, Any]) -> None:
        """Withdraw a question that was decided elsewhere, or no longer waits for another reason."""
        if any(each.approval["id"] == decided["id"] for each in self._open if each.approval):
            first = self._open[0]
            self._open = deque(each for each in self._open if each.approval.get("id") != decided["id"])
            why = _ELSEWHERE.get(decided["state"]) or printable(decided.get("reason") or "its code was stopped", lines=False)
            say(f"\nit no longer waits: {why}")
            if self._open and self._open[0] is not first:
                self._moved = time.monotonic()
                self._show()

    def read(self) -> str:
        """Read available standard input; if it completes a line, answer the first question.

        Returns:
            Text that the session will echo, although the terminal has already shown it.
        """
        try:
            piece = os.read(0, _PIECE) if b"\n" not in self._typed else b""
        except OSError:
            piece = b""  # closed
        ended = not piece and b"\n" not in self._typed
        self._typed += piece
        if b"\n" not in self._typed and not ended:
            return ""
        data, newline, self._typed = self._typed.partition(b"\n")
        line = data.decode("utf-8", "replace") if data or newline else None
        first = self._open[0]
        if first.approval and line is not None and time.monotonic() - self._moved < _STILL:
            say("the question has changed: answer again")
            self._show()
            return ""
        if first.approval:
            self._decide(first.approval, line)
            return ""
        self._next()
        self.tell(Answer(first.execution, end=line is None), (line or "").encode())
        if line is None or not sys.stdin.isatty():
            return ""
        if first.password:
            print(flush=True)
            return "*" * 8 + "\n"
        return f"{line}\n"

    def tell(self, request: Answer | Decide, body: bytes = b"") -> Any:
        """Send an answer to the daemon, on a second connection."""
        if self._control is None or not self._control.usable:
            self._control = connect()
        return self._control.call(request, body)

    def close(self) -> None:
        """Withdraw all questions, and turn the terminal's echo on again."""
        self._open.clear()
        self._set_echo(on=True)
        if self._control is not None:
            self._control.close()

    def _answer(self, question: Mapping[str, Any], line: str | None) -> None:
        """Send the answer to a question of an MCP server; an empty one is a refusal."""
        try:
            filled_in = read_line(question, line) if line and line.strip() else {}
            request = Decide((question["id"],), bool(line and line.strip()), by="terminal", answer=filled_in)
            self.tell(request)
        except StateError as error:
            say(f"cellblock: {error}")
        except InvalidInputError as error:
            say(f"cellblock: {error}")
            self._show()
            return
        self._next()

    def _decide(self, approval: Mapping[str, Any], line: str | None) -> None:
        if approval["kind"] == "question":
            self._answer(approval, line)
            return
        answer = "n" if line is None else line.strip().lower()[:1]
        if answer not in ("y", "n", "c", "t"):
            if answer:
                say("answer with y, n, c or t")
            self._show()
            return
        self._next()
        try:
            self.tell(Decide((approval["id"],), answer != "n", _ALWAYS.get(answer, ""), by="terminal"))
        except StateError as error:
            say(f"cellblock: {error}")

    def _add(self, question: _Question) -> None:
        self._open.append(question)
        if len(self._open) == 1:
            self._show()

    def _next(self) -> None:
        self._set_echo(on=True)
        self._open.popleft()
        if self._open:
            self._show()

    def _show(self) -> None:
        first = self._open[0]
        if first.approval:
            self._forget_what_was_typed()
            kind, text = first.approval["kind"], printable(first.approval["text"], lines=False)
            print(painted(f"{_KINDS.get(kind, kind)}: {text}", "yellow", sys.stdout))
            if kind == "question":
                print(f"{fields_of(first.approval)}; nothing to refuse > ", end="", flush=True)
                return
            print(f"allow it? {_choices(first.approval)} > ", end="", flush=True)
        elif first.password:
            self._set_echo(on=False)

    def _forget_what_was_typed(self) -> None:
        """Discard pending input, so that no earlier key decides about a call."""
        import termios

        self._typed = b""
        termios.tcflush(0, termios.TCIFLUSH)

    def _set_echo(self, *, on: bool) -> None:
        if not sys.stdin.isatty() or (on and self._echo is None):
            return
        import termios

        if on:
            termios.tcsetattr(0, termios.TCSADRAIN, self._echo or termios.tcgetattr(0))
            self._echo = None
        elif self._echo is None:
            self._echo = termios.tcgetattr(0)
            silent = termios.tcgetattr(0)
            silent[3] &= ~termios.ECHO
            termios.tcsetattr(0, termios.TCSADRAIN, silent)


def _choices(approval: Mapping[str, Any]) -> str:
    """Return the choices for a call, each with what it covers."""
    given = approval["arguments"]
    one, all_ = {
        "shell": ("this command", "every command"),
        "network": (f"{given.get('host')} port {given.get('port')}", "every host"),
        "http": ("exactly this request", f"every {approval['tool']} to {approval['server']}"),
    }.get(approval["kind"], ("exactly this call", f"every call of {approval['server']}.{approval['tool']}"))
    return printable(f"[y]es, [n]o; in this session always [c]: {one}, [t]: {all_}", lines=False)


class _Question:
    """A request for a line, or a call that waits for a decision."""

    def __init__(self, *, execution: str = "", password: bool = False, approval: Mapping[str, Any] | None = None) -> None:
        self.execution = execution
        self.password = password
        self.approval = approval or {}
