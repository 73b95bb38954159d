"""LlamaIndex: `code_execute_fn` creates the code executor of a `CodeActAgent`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from cellblock.fronts.executor.executor import CodeExecutor


def code_execute_fn(
    executor: CodeExecutor, functions: Sequence[Callable[..., Any]] = ()
) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """Return a function for ``CodeActAgent(code_execute_fn=…)`` that runs code in a session.

    Args:
        executor: A started executor.
        functions: Functions of this program that the code may call by name. Pass the same functions to the agent as
            `tools`, so that its model knows them.
    """
    definitions = executor.offer({function.__name__: function for function in functions}, "llama_index")
    defined = False

    async def execute(code: str) -> dict[str, Any]:
        """Execute Python code in a session in which variables persist, and return what it showed."""
        nonlocal defined
        if not defined:
            await executor.execute(definitions)
            defined = True
        result = await executor.execute(code, check=False)
        if result.recovery == "restarted":
            defined = False
        return {"success": result.error is None, "output": await executor.for_model(result)}

    return execute
