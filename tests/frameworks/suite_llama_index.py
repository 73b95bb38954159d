"""`cellblock.adapters.llama_index`, by a real `CodeActAgent`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata

from cellblock import CodeExecutor
from cellblock.adapters.llama_index import code_execute_fn
from frameworks.document import check_agent


class Scripted(CustomLLM):
    """A model that says one text after the other."""

    texts: list[str]

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata()

    def complete(self, prompt: str, formatted: bool = False, **options: Any) -> CompletionResponse:
        return CompletionResponse(text=self.texts.pop(0))

    def stream_complete(self, prompt: str, formatted: bool = False, **options: Any) -> Iterator[CompletionResponse]:
        text = self.texts.pop(0)
        yield CompletionResponse(text=text, delta=text)


def price_of(item: str) -> int:
    """Return the price of an item."""
    return {"tea": 3}[item]


def test_the_agent_of_the_page() -> None:
    steps = ["<execute>\nprice = price_of('tea')\n</execute>", "<execute>\nprint(price * 2)\n</execute>", "Two cost 6."]
    check_agent("LlamaIndex", llm=Scripted(texts=steps))


async def test_functions_are_called_in_the_program_and_failures_are_results() -> None:
    async with CodeExecutor() as executor:
        execute = code_execute_fn(executor, [price_of])
        assert await execute("print(price_of('tea'))") == {"success": True, "output": "3"}
        failed = await execute("price_of('gold')")
        assert failed["success"] is False
        assert "KeyError: 'gold'" in failed["output"]


async def test_functions_are_there_again_after_the_kernel_was_lost() -> None:
    async with CodeExecutor(recovery="none") as executor:
        execute = code_execute_fn(executor, [price_of])
        assert "fresh kernel" in (await execute("import os; os._exit(1)"))["output"]
        assert (await execute("price_of('tea')"))["output"] == "3"
