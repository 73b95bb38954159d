"""``cellblock attach``: an interactive console on a session."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cellblock.common.terminal import printable
from cellblock.errors import CellblockError, InvalidInputError, NotFoundError, NotRunError
from cellblock.fronts.cli import live, problems
from cellblock.fronts.cli.daemon_access import connect
from cellblock.fronts.cli.execute import make
from cellblock.fronts.cli.problems import OK, say
from cellblock.operations.checkpoints import Checkpoints
from cellblock.operations.executions import Submit
from cellblock.operations.sessions import Complete, History

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

_Ask = Callable[[str, int], "dict[str, Any] | None"]
_LEAVE = {"exit", "quit", "exit()", "quit()", "%exit", "%quit"}
_MOST_HISTORY = 1000


class _PromptInterruptedError(Exception):
    """Ctrl-C was typed at the prompt. asyncio reports a `KeyboardInterrupt` in one of its tasks with a traceback."""


def attach(name: str, options: Mapping[str, Any]) -> int:
    """Read cells from the terminal and run them in a session, until the user leaves.

    Args:
        name: The session's name.
        options: Options of a new session, which must not exist.

    Raises:
        CellblockError: The session cannot be created or reached.
    """
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise InvalidInputError(f"attach needs a terminal; programs use 'cellblock exec --name {name} CODE'")
    console = _Console(name, options)
    try:
        console.run()
    finally:
        console.close()
    say(f"session {name!r} keeps running; 'cellblock attach {name}' opens it again, 'cellblock destroy {name}' ends it")
    return OK


class _Console:
    def __init__(self, name: str, options: Mapping[str, Any] | None = None) -> None:
        self._connection = connect()
        self._asking = connect()
        """For completions, which are requested in a thread."""
        self._session = make(self._connection, name, options or {})
        history = self._connection.call(History(self._session["kernel_id"], _MOST_HISTORY))
        self._number = 1
        counts = [entry["execution_count"] or 0 for entry in history if not entry["abandoned"]]
        checkpoints = self._connection.call(Checkpoints(self._session["kernel_id"]))
        if counts and checkpoints:  # a fresh kernel has none
            self._number += counts[-1]
        self._prompt = _prompt([entry["code"] for entry in history], self._ask)

    def close(self) -> None:
        self._connection.close()
        self._asking.close()

    def _ask(self, code: str, cursor: int) -> dict[str, Any] | None:
        try:
            if not self._asking.usable:
                self._asking = connect()
            found = self._asking.call(Complete(self._session["kernel_id"], cursor), code.encode())
        except CellblockError:
            return None
        return dict(found)

    def run(self) -> None:
        session = self._session
        print(f"session {printable(session['name'])} in {printable(session['workspace'], lines=False)}; Ctrl-D leaves it")
        while True:
            try:
                code = self._prompt.prompt(f"In [{self._number}]: ")
                if code.strip() in _LEAVE:
                    return
                if code.strip():
                    self._execute(code)
            except (_PromptInterruptedError, KeyboardInterrupt):  # the second: just before or after the prompt
                continue
            except EOFError:
                return

    def _execute(self, code: str) -> None:
        try:
            self._try(code)
        except NotRunError as error:
            if self._connection.usable:  # withdrawn while it was queued
                problems.report(error)
            else:  # the daemon was killed between cells: the code was not sent, and the next daemon has the session
                self._try(code)

    def _try(self, code: str) -> None:
        if not self._connection.usable:
            self._connection = connect()
        connection = self._connection
        request = Submit(self._session["kernel_id"], timeout=-1, live=True, stdin=True)
        body = code.encode("utf-8", "surrogateescape")
        name = self._session["name"]
        reader = live.Terminal("Out[{}]: ")
        try:
            result = live.follow(connection, lambda: str(connection.call(request, body)["id"]), reader, name)
            self._number = (result["execution_count"] or self._number) + 1
        except NotFoundError:  # the message has the id, which means nothing to users
            raise NotFoundError(f"session {name!r} was ended by another client") from None
        except NotRunError:
            raise
        except CellblockError as error:
            problems.report(error)
        except live.NotBegunError:
            say("interrupted before it began: nothing was run")
        except KeyboardInterrupt:
            connection.close()  # in the middle of an answer
            say(f"the cell does not stop; 'cellblock restart {name}' gives the session a fresh kernel")


def _prompt(history: Iterable[str], ask: _Ask) -> PromptSession[str]:
    """Create the prompt that reads cells, with history, completion, colours, and continuation lines."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.lexers import PygmentsLexer
    from pygments.lexers.python import PythonLexer

    entered = InMemoryHistory()
    for code in history:
        entered.append_string(code)
    return PromptSession(
        history=entered,
        interrupt_exception=_PromptInterruptedError,
        completer=_completer(ask),
        complete_in_thread=True,
        complete_while_typing=False,
        key_bindings=_keys(),
        lexer=PygmentsLexer(PythonLexer),
        multiline=True,
        prompt_continuation=lambda width, line, wrapped: "...: ".rjust(width),
        enable_open_in_editor=True,
    )


def _completer(ask: _Ask) -> Completer:
    from prompt_toolkit.completion import Completer, Completion

    class FromSession(Completer):
        """A completer that asks the session. Its answers are untrusted: those with control characters are not offered."""

        def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
            found = ask(document.text, document.cursor_position)
            if found is None:
                return
            start = found["start"] - document.cursor_position
            for match in found["matches"]:
                if start <= 0 and printable(match, lines=False) == match:
                    yield Completion(match, start)

    return FromSession()


def _keys() -> KeyBindings:
    """Return the key bindings: Enter runs complete code, and otherwise inserts a line break; Ctrl-O always inserts one."""
    from IPython.core.inputtransformer2 import TransformerManager
    from prompt_toolkit.application.current import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings

    keys: KeyBindings = KeyBindings()
    code: Any = TransformerManager()  # type: ignore[no-untyped-call]  # IPython's

    @keys.add("enter", filter=Condition(lambda: get_app().current_buffer.complete_state is None))
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        text = buffer.document.text_before_cursor
        state, indent = code.check_complete(text)
        if state != "incomplete" and not buffer.document.text_after_cursor.strip():
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n" + " " * (indent or 0))

    @keys.add("c-o")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys
