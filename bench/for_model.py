"""How long `CodeExecutionResult.for_model` takes: for 200 KB of output, and for a failed cell with as much before its error.

Usage: python -m bench.for_model

The least and the median of many calls, in milliseconds, are printed and written to bench/results/for_model.json.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from bench.report import machine
from cellblock import CodeExecutionResult, CodeExecutor

_RESULTS = Path(__file__).parent / "results" / "for_model.json"
_OUTPUT = "for number in range(4000): print(f'{number:06} a line of output that is fifty characters')\n"
_FAILURE = "import json\njson.loads('{' * 10)"
_CALLS = 200


async def _result(code: str) -> CodeExecutionResult:
    async with CodeExecutor() as executor:
        return await executor.session.execute(code)


def _measured(result: CodeExecutionResult) -> dict[str, Any]:
    times = []
    for _ in range(_CALLS):
        begun = time.perf_counter()
        result.for_model()
        times.append((time.perf_counter() - begun) * 1000)
    figures = {"least_ms": round(min(times), 3), "median_ms": round(statistics.median(times), 3)}
    return {"characters": len(result.text or ""), "calls": _CALLS, **figures}


async def main() -> None:
    """Measure both, and write them down."""
    measured = {
        "output": _measured(await _result(_OUTPUT)),
        "output and an error": _measured(await _result(_OUTPUT + _FAILURE)),
    }
    for name, figures in measured.items():
        print(f"{name:22}{figures['characters']:9,} characters{figures['median_ms']:8.3f} ms")
    _RESULTS.write_text(json.dumps({"machine": machine(), "for_model": measured}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
