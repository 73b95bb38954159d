"""Running cells in tests, and saying what came of them when that is not what was expected."""

from __future__ import annotations

import ast
from typing import Any

from cellblock import CodeExecutionResult, Session


async def ok(session: Session, code: str, **options: Any) -> CodeExecutionResult:
    """Run a cell that must succeed."""
    result = await session.execute(code, **options)
    assert result.status == "success", result.text
    return result


async def value(session: Session, code: str, **options: Any) -> Any:
    """Run a cell that must succeed, and return what its last expression evaluates to (a literal)."""
    result = await ok(session, code, **options)
    assert result.return_value is not None, result.text
    return ast.literal_eval(result.return_value)
