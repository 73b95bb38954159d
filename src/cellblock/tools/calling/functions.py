"""Functions of the host program, as called by code in its session. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cellblock.tools.calling.runner import ToolRunner

REST = "*"
"""The name under which positional arguments travel that have no name of their own."""


class ProgramFunction:
    """A function of the program that runs this session. Arguments and results are JSON data.

    The host decides about each call and executes it, as for tools of MCP servers.
    """

    def __init__(
        self, server: str, name: str, parameters: Sequence[str] = (), signature: str = "(...)", doc: str = ""
    ) -> None:
        """Set up without a call.

        Args:
            server: The server name under which the program offers the function.
            name: The function's name.
            parameters: Names of the parameters that take positional arguments, in order.
            signature: The signature in the docstring.
            doc: The description in the docstring.
        """
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"{name}{signature}\n\n{doc}".strip()
        self._server = server
        self._parameters = tuple(parameters)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function, and wait for its result.

        Raises:
            TypeError: A parameter gets two values.
            ToolRunnerError: The function failed, or was not allowed; the message has the reason.
        """
        arguments = dict(zip(self._parameters, args, strict=False))
        if twice := sorted(arguments.keys() & kwargs.keys()):
            raise TypeError(f"{self.__name__}() got multiple values for argument {twice[0]!r}")
        if rest := args[len(self._parameters) :]:
            arguments[REST] = rest
        answer = ToolRunner(self._server).run_sync(self.__name__, arguments | kwargs)
        assert isinstance(answer, dict)
        return answer["value"]

    def __repr__(self) -> str:
        return f"<function {self.__name__} of the program>"
