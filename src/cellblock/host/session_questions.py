"""What editors ask a session: `Session` inherits it."""

from __future__ import annotations

from cellblock.errors import InvalidInputError
from cellblock.host.checks import check_place
from cellblock.host.kernels.cells import Cells
from cellblock.model import Completions
from cellblock.wire.messages import Changed, Changes, Complete, Completed, Inspect, Inspected


class WithQuestions:
    """The methods of a session that answer questions about its variables."""

    _cells: Cells

    async def complete(self, code: str, cursor: int | None = None) -> Completions:
        """Return what could complete some code at a place, given the session's variables.

        Args:
            code: The code so far.
            cursor: The place, in characters from its beginning; its end by default.

        Raises:
            InvalidInputError, StateError, KernelDiedError: The input is bad, the session is not there, or its kernel died.
        """
        answer = await self._cells.ask(Complete(*check_place(code, cursor)))
        assert isinstance(answer, Completed)
        return Completions(list(answer.matches), answer.start, answer.end)

    async def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0) -> str | None:
        """Return what is known about the name at a place in some code: signature, docstring, type.

        Args:
            code: The code.
            cursor: The place, in characters from its beginning; its end by default.
            detail: 1 adds the source.

        Returns:
            The description, or None if nothing of that name exists.

        Raises:
            InvalidInputError, SandboxError, StateError, KernelDiedError: As for `complete`.
        """
        if detail not in (0, 1):
            raise InvalidInputError(f"detail must be 0 or 1, not {detail!r}")
        answer = await self._cells.ask(Inspect(*check_place(code, cursor), detail))
        assert isinstance(answer, Inspected)
        return answer.text

    async def changes(self) -> tuple[dict[str, str], list[str]]:
        """Return what cells have done to variables since this was last called, as far as the kernel says.

        Returns:
            The types of the variables that are new, or mean another object than before, by their names; and the names of those
            that are gone. At most 50 of each.

        Raises:
            StateError, KernelDiedError: As for `complete`.
        """
        # Once asked, cells say it before they end.
        answer = self._cells.take_changed() or await self._cells.ask(Changes())
        assert isinstance(answer, Changed)
        return dict(zip(answer.names, answer.types, strict=True)), list(answer.gone)
