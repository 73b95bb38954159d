"""Every example of KernelBox's documentation of its Python API and its settings, with nothing changed but the import."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cellblock
from daemons import own_daemon

pytestmark = pytest.mark.slow

IMPORT = "from cellblock import destroy, execute, execute_with_retry, get_or_create\n"

EXAMPLES = {
    "30-second demo": (
        """
# Agentic AI: give your agent a named, persistent execution kernel
kernel = get_or_create("agent-sandbox")

# Step 1 — agent sends first code block
result = execute(kernel, "x = [1, 2, 3]\\nsum(x)")
print(result.status)
print(result.return_value)

# Step 2 — kernel remembers x. No context re-serialisation needed.
result = execute(kernel, "x.append(4)\\nsum(x)")
print(result.return_value)

destroy("agent-sandbox")
""",
        "success\n6\n10\n",
    ),
    "data pipeline": (
        """
kernel = get_or_create("data-pipeline")
result = execute(kernel, "import pandas as pd\\ndf = pd.DataFrame({'a': [1,2,3]})")
print(result.status, repr(result.output), repr(result.stderr), result.return_value, result.duration_ms >= 0, result.truncated)
result = execute(kernel, "echo $HOME", language="bash")
print(result.ok, bool(result.output.strip()))
print(destroy("data-pipeline"))
""",
        "success '' '' None True False\nTrue True\nTrue\n",
    ),
    "self-healing": (
        """
kernel = get_or_create("healed")

def fix_code(result, attempt):
    # result.error has: .ename, .evalue, .traceback
    # Return new code to retry, or None to retry the same code
    return f"# attempt {attempt}\\nx = 41\\nx + 1"

result = execute_with_retry(kernel, "x + 1", on_error_fn=fix_code)

print(result.status)
print(result.return_value)
print(len(result.attempts))
""",
        "success\n42\n2\n",
    ),
    "reading all fields": (
        """
kernel = get_or_create("fields")
result = execute(kernel, "print('hello')\\n2 + 2")
print(result.status)
print(result.ok)
print(result.output)
print(result.return_value)
print(type(result.duration_ms).__name__)
print(result.truncated)
print(result.stderr == "", result.error, result.execution_count, [item.kind for item in result.outputs], result.attempts)
""",
        "success\nTrue\nhello\n\n4\nint\nFalse\nTrue None 1 ['stream', 'execute_result'] []\n",
    ),
    "handling an error": (
        """
kernel = get_or_create("wrong")
result = execute(kernel, "1 / 0")
if not result.ok:
    print(result.error.ename)
    print(result.error.evalue)
""",
        "ZeroDivisionError\ndivision by zero\n",
    ),
    "self-correcting execution": (
        """
kernel = get_or_create("agent")

def fix(result, attempt):
    print(f"Attempt {attempt} failed: {result.error.evalue}")
    # Ask your LLM for a fix, or hardcode one:
    return "x = 41\\nx + 1"

result = execute_with_retry(kernel, "x + 1", on_error_fn=fix)

print(result.status)
print(result.return_value)
print(len(result.attempts))
first = result.attempts[0]
print(first.attempt, first.code, first.status, repr(first.output), repr(first.stderr), first.error.ename)
print(execute_with_retry(kernel, "1 / 0", lambda result, attempt: None, max_attempts=2).status)
""",
        "Attempt 1 failed: name 'x' is not defined\nsuccess\n42\n2\n1 x + 1 error '' '' NameError\nmax_attempts_exceeded\n",
    ),
    "an id in place of a record": (
        """
kernel = get_or_create("by-id")
print(execute(kernel.kernel_id, "1 + 1").return_value)
""",
        "2\n",
    ),
    "stateful sessions in practice": (
        """
kernel = get_or_create("pipeline")

execute(kernel, "import pandas as pd")
execute(kernel, "df = pd.read_csv('data.csv')")
execute(kernel, "df = df.dropna()")

result = execute(kernel, "df.shape")
print(result.return_value)

execute(kernel, "df.to_parquet('clean.parquet')")
destroy("pipeline")
""",
        "(2, 2)\n",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A daemon of these tests' own, which ends with them."""
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        Path("data.csv").write_text("a,b\n1,2\n,3\n4,5\n")
        yield home


_PANDAS = ("data pipeline", "stateful sessions in practice")  # which takes seconds to import


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in _PANDAS)) for name in EXAMPLES])
def test_an_example_prints_what_it_shows(name: str) -> None:
    code, shown = EXAMPLES[name]
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(IMPORT + code, names)
    assert printed.getvalue() == shown
    if name == "stateful sessions in practice":
        assert Path("clean.parquet").exists()


def test_output_is_cut_at_the_documented_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = cellblock.get_or_create("long")
    assert not cellblock.execute(kernel, "print('x' * 9_000)").truncated
    cut = cellblock.execute(kernel, "print('x' * 20_000)")
    assert cut.truncated
    assert len(cut.output) < 11_000


def test_a_timeout_is_a_status() -> None:
    result = cellblock.execute(cellblock.get_or_create("slow"), "import time; time.sleep(60)", timeout=0.1)
    assert (result.status, result.ok) == ("timeout", False)
