"""smolagents: `CellblockExecutor` runs the code of a `CodeAgent` in a session; its tools run in the program.

Other remote executors of smolagents send the source of tools into the sandbox. Here a tool stays with its keys, network
access and objects. The code calls it by name, and rules and the audit record see the call with its arguments.
"""

from __future__ import annotations

import inspect
from io import BytesIO
from typing import Any

import PIL.Image
from smolagents import serialization
from smolagents.local_python_executor import CodeOutput, PythonExecutor

from cellblock.adapters.adapter_session import SyncSession
from cellblock.errors import CodeExecutionError
from cellblock.fronts.executor.sync import SyncCodeExecutor
from cellblock.model import CodeExecutionResult
from cellblock.model.blocks import pictures

_SAFE = serialization.SafeSerializer
_FINAL = "_FinalAnswer"

_SETUP = f"""
def _setup():
    import sys, types
    values = sys.modules["_smolagents_values"] = types.ModuleType("_smolagents_values")
    exec({inspect.getsource(serialization)!r}, values.__dict__)

    class {_FINAL}(BaseException):
        "The agent has its answer: the cell ends."

    def tool(call, final=False):
        to, back = values.SafeSerializer.to_json_safe, values.SafeSerializer.from_json_safe
        def run(*args, **kwargs):
            value = back(call(*map(to, args), **{{name: to(value) for name, value in kwargs.items()}}))
            if final:
                raise {_FINAL}()
            return value
        run.__name__, run.__doc__ = call.__name__, call.__doc__
        return run
    return tool
_smolagents_tool = _setup()
del _setup
"""


class CellblockExecutor(PythonExecutor):
    """An executor of a `CodeAgent`'s code: ``CodeAgent(tools, model, executor=CellblockExecutor())``.

    Attributes:
        state: The output of a cell before it failed, under ``_print_outputs``, where smolagents looks for it.
    """

    def __init__(self, executor: SyncCodeExecutor | None = None, **options: Any) -> None:
        """Set up. The executor's own session starts with the first step.

        Args:
            executor: A started executor, which the caller stops; by default a new one, until `cleanup`.
            options: The arguments of `CodeExecutor` for a new executor, if none is given.

        Raises:
            InvalidInputError: An option is invalid.
        """
        self._session = SyncSession(executor, options)
        self._answer: Any = None
        self._definitions = ""
        self.state: dict[str, Any] = {"_print_outputs": ""}

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Let the code call tools and managed agents, which run in this program."""
        functions = {name: self._served(name, tool) for name, tool in tools.items()}
        executor = self._session.executor
        lines = [_SETUP, executor.offer(functions, "smolagents")]
        lines += [f"{name} = _smolagents_tool({name}, {name == 'final_answer'})" for name in functions]
        self._definitions = "\n".join([*lines, "del _smolagents_tool"])
        executor.execute(self._definitions)

    def _served(self, name: str, tool: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            back = _SAFE.from_json_safe
            value = tool(*map(back, args), **{key: back(value) for key, value in kwargs.items()})
            if name == "final_answer":
                self._answer, value = (value,), None
            return _SAFE.to_json_safe(value)

        parameters = [inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD) for key in tool.inputs]
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__doc__ = tool.description
        return call

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables of types that smolagents' `SafeSerializer` supports, such as images and arrays."""
        if variables:
            code = _SAFE.get_deserializer_code(False)
            given = _SAFE.dumps(variables, allow_pickle=False)
            self._session.executor.execute(f"{code}\nglobals().update(_deserialize({given!r}))")

    def __call__(self, code_action: str) -> CodeOutput:
        """Run a step.

        Raises:
            CodeExecutionError: The code failed; the message has the traceback, and `state` the output before it.
        """
        self._answer = None
        result = self._session.executor.execute(code_action, check=False)
        self.state["_print_outputs"] = result.output
        if result.recovery == "restarted":  # without the old kernel's state, as its error tells the model
            self._session.executor.execute(self._definitions)
        if self._answer is not None and result.error is not None and result.error.ename == _FINAL:
            return CodeOutput(self._answer[0], result.output, True)
        if result.error is not None:
            raise CodeExecutionError("\n".join(result.error.traceback) or str(result.error), result)
        return CodeOutput(_value(result), result.output, False)

    def cleanup(self) -> None:
        """End the session, if the executor owns it. `CodeAgent.cleanup` calls this."""
        self._session.close()


def _value(result: CodeExecutionResult) -> Any:
    """Return the value of a cell's last expression: an image, or its text."""
    for _, data in pictures(output for output in result.outputs if output.kind == "execute_result"):
        return PIL.Image.open(BytesIO(data))
    return result.return_value
