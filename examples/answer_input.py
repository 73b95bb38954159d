"""Code that calls `input()` asks its caller, who may be a person, a model, or a table as here."""

import asyncio

from cellblock import CodeExecutionError, CodeExecutor, printable

CODE = """
name = input("What is your name? ")
print(f"Hello, {name}!")
"""


async def main() -> None:
    """Run the same cell with somebody who answers, and with nobody."""
    answers = {"What is your name? ": "Ada"}
    async with CodeExecutor() as executor:
        result = await executor.execute(CODE, on_input=lambda prompt: answers[prompt])
        print(printable(result.text or ""))  # a terminal would obey what is in it
        try:
            await executor.execute(CODE)
        except CodeExecutionError as error:
            print(f"Without an answer: {error.result and error.result.error and error.result.error.evalue}")


asyncio.run(main())
