"""Code in a Markdown fence, with prose around it."""

from __future__ import annotations

import pytest

from cellblock import Session
from cellblock.worker.prose import code_of
from cells import ok


def same(text: str) -> str:
    return text


@pytest.mark.parametrize(
    "cell",
    [
        "Here is the code:\n```python\nx = 1\n```\nIt sets x.",
        "```py\nx = 1\n```\nDone!",
        "First, we set x.\n\n```\nx = 1\n```",
    ],
)
def test_the_code_is_found(cell: str) -> None:
    assert code_of(cell, same) == "x = 1\n"


@pytest.mark.parametrize(
    "cell",
    [
        "x = 1",
        "text = '''\n```python\ny = 2\n```\n'''",  # a string: this is Python as it is
        "One:\n```python\na\n```\nTwo:\n```python\nb\n```",  # which of the two?
        "It is not closed:\n```python\nx = 1",
        "Run this:\n```bash\nrm -r x\n```",
        "it is `x` and ```y``` there",
    ],
)
def test_any_other_cell_stays_as_it_is(cell: str) -> None:
    assert code_of(cell, same) == cell


async def test_it_runs_and_is_what_the_history_and_tracebacks_show(session: Session) -> None:
    assert (await ok(session, "We try it:\n```python\nx = 20\n%precision 2\nx + 1\n```\nThat is all.")).return_value == "21"
    assert (await ok(session, "'We try' in In[1], 'x = 20' in In[1]")).return_value == "(False, True)"
    result = await session.execute("Now it fails:\n```\n1 / 0\n```")
    assert "----> 1 1 / 0" in result.for_model()
