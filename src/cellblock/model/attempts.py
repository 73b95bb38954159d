"""Code that is run, repaired and run again until it succeeds: `execute_with_retry`."""

from __future__ import annotations

from dataclasses import replace

from cellblock.errors import InvalidInputError
from cellblock.model import AttemptSnapshot, CodeExecutionResult


class Attempts:
    """The attempts of `execute_with_retry`.

    Attributes:
        code: The code of the next one.
        number: How many there were.
    """

    def __init__(self, code: str, most: int) -> None:
        """Begin with none.

        Args:
            code: The code of the first one.
            most: How many there may be.

        Raises:
            InvalidInputError: `most` is not a number of attempts.
        """
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidInputError(f"max_attempts must be at least 1, not {most!r}")
        self.code = code
        self._most = most
        self._done: list[AttemptSnapshot] = []

    @property
    def number(self) -> int:
        """How many there were."""
        return len(self._done)

    def add(self, result: CodeExecutionResult) -> CodeExecutionResult | None:
        """Take the result of an attempt; return that of all of them if it was the last."""
        snapshot = AttemptSnapshot(self.number + 1, self.code, result.status, result.output, result.stderr, result.error)
        self._done.append(snapshot)
        if result.ok:
            return replace(result, attempts=self._done)
        if self.number >= self._most:
            return replace(result, status="max_attempts_exceeded", attempts=self._done)
        return None

    def repair(self, code: str | None) -> None:
        """Take the code of the next attempt; None: the same again."""
        if code is not None:
            self.code = code
