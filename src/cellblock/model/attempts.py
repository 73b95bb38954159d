"""Retries of failing code with repairs: `execute_with_retry`."""

from __future__ import annotations

from dataclasses import replace

from cellblock.errors import InvalidInputError
from cellblock.model import AttemptSnapshot, CodeExecutionResult


class Attempts:
    """The attempts of `execute_with_retry`.

    Attributes:
        code: The code of the next attempt.
        number: Number of attempts made.
    """

    def __init__(self, code: str, most: int) -> None:
        """Start without attempts.

        Args:
            code: The code of the first attempt.
            most: Maximum number of attempts.

        Raises:
            InvalidInputError: `most` is out of range.
        """
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise InvalidInputError(f"max_attempts must be at least 1, not {most!r}")
        self.code = code
        self._most = most
        self._done: list[AttemptSnapshot] = []

    @property
    def number(self) -> int:
        """Number of attempts made."""
        return len(self._done)

    def add(self, result: CodeExecutionResult) -> CodeExecutionResult | None:
        """Add the result of an attempt. Return the combined result if this was the last attempt."""
        snapshot = AttemptSnapshot(self.number + 1, self.code, result.status, result.output, result.stderr, result.error)
        self._done.append(snapshot)
        if result.ok:
            return replace(result, attempts=self._done)
        if self.number >= self._most:
            return replace(result, status="max_attempts_exceeded", attempts=self._done)
        return None

    def repair(self, code: str | None) -> None:
        """Set the code of the next attempt; None for the same code."""
        if code is not None:
            self.code = code
