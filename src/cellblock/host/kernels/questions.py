"""Questions of editors about a session's variables."""

from __future__ import annotations

from cellblock.errors import InvalidInputError
from cellblock.host.kernels.cell import check_place
from cellblock.host.kernels.cells import Cells
from cellblock.model import Completions
from cellblock.wire.messages import Changed, Changes, Complete, Completed, Inspect, Inspected


class Questions:
    """Asks a session's kernel questions between two cells."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def complete(self, code: str, cursor: int | None = None) -> Completions:
        """Return completions of some code at a cursor, given the session's variables.

        Args:
            code: The code so far.
            cursor: The cursor as a character index; by default the end.

        Raises:
            InvalidInputError, StateError, KernelDiedError: An argument is invalid, the session is not running, or its kernel
                died.
        """
        answer = await self._cells.ask(Complete(*check_place(code, cursor)))
        assert isinstance(answer, Completed)
        return Completions(list(answer.matches), answer.start, answer.end)

    async def inspect(self, code: str, cursor: int | None = None, *, detail: int = 0) -> str | None:
        """Describe the name at a cursor in some code: signature, docstring, type.

        Args:
            code: The code.
            cursor: The cursor as a character index; by default the end.
            detail: 1 adds the source.

        Returns:
            The description; None for an unknown name.

        Raises:
            InvalidInputError, SandboxError, StateError, KernelDiedError: As for `complete`.
        """
        if detail not in (0, 1):
            raise InvalidInputError(f"detail must be 0 or 1, not {detail!r}")
        answer = await self._cells.ask(Inspect(*check_place(code, cursor), detail))
        assert isinstance(answer, Inspected)
        return answer.text

    async def changes(self) -> tuple[dict[str, str], list[str]]:
        """Return how cells changed variables since the last call, as the kernel reports.

        Returns:
            The types of new and rebound variables by name, and the names of deleted ones. At most 50 of each.

        Raises:
            StateError, KernelDiedError: As for `complete`.
        """
        # After the first question, cells report changes before they end.
        answer = self._cells.take_changed() or await self._cells.ask(Changes())
        assert isinstance(answer, Changed)
        return dict(zip(answer.names, answer.types, strict=True)), list(answer.gone)
