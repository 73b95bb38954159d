"""A kernel behaves as people know Jupyter."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cellblock import Host, Session
from cells import ok, value

ANSI = re.compile(r"\x1b\[")


async def test_code_awaits_at_the_top(session: Session) -> None:
    """Cells await, tasks go on between them, and asyncio.run works within the loop."""
    # Top level await.
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 7\nawait f()"
    assert await value(session, code) == 7
    # Top level async for and with.
    code = """
import contextlib
async def numbers():
    for i in range(3): yield i
@contextlib.asynccontextmanager
async def context():
    yield 9
seen = []
async for n in numbers(): seen.append(n)
async with context() as c: seen.append(c)
seen
"""
    assert await value(session, code) == [0, 1, 2, 9]
    # A task goes on between cells.
    code = """
import asyncio
ticks = 0
async def tick():
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0.005)
task = asyncio.create_task(tick())
"""
    await ok(session, code)
    await ok(session, "import asyncio")
    assert await value(session, "import time; time.sleep(0.05); await asyncio.sleep(0.05); ticks") > 3
    await ok(session, "_ = task.cancel()")
    # A task of one cell is awaited in another.
    await ok(
        session, "import asyncio\nasync def f():\n    await asyncio.sleep(0.02)\n    return 5\ntask = asyncio.create_task(f())"
    )
    assert await value(session, "await task") == 5
    # Asyncio run in a cell works and leaves the loop as it was.
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(0.001)\n    return 5\nasyncio.run(f())"
    assert await value(session, code) == 5
    assert await value(session, "await asyncio.sleep(0, 6)") == 6
    assert await value(session, "asyncio.run(f()) + asyncio.run(f())") == 10


async def test_the_last_values_are_kept_as_underscore_and_out(session: Session) -> None:
    await ok(session, "41 + 1")
    assert await value(session, "_") == 42
    assert await value(session, "Out[1], _1, In[1]") == (42, 42, "41 + 1")
    assert (await ok(session, "5;")).return_value is None
    assert (await ok(session, "None")).return_value is None


async def test_execution_counts_go_up_by_one(session: Session) -> None:
    assert [(await session.execute(code)).execution_count for code in ("1", "1/0", "3")] == [1, 2, 3]


async def test_display_shows_values_of_every_kind(session: Session) -> None:
    """Also anew, and not any more."""
    code = """
from IPython.display import display, HTML, Markdown, Latex, SVG, JSON, Javascript
display(1, HTML("<b>h</b>"), Markdown("*m*"), Latex("$x$"), SVG("<svg xmlns='http://www.w3.org/2000/svg'/>"), JSON({"a": [1]}))
"""
    result = await ok(session, code)
    html, markdown, latex, svg, data = result.outputs[1:]
    assert html.data["text/html"] == "<b>h</b>"
    assert markdown.data["text/markdown"] == "*m*"
    assert latex.data["text/latex"] == "$x$"
    assert "<svg" in str(svg.data["image/svg+xml"])
    assert data.json() == {"a": [1]}
    # Update display changes what was shown.
    code = "from IPython.display import display\nh = display('old', display_id='one')\nprint('between')\nh.update('new')"
    result = await ok(session, code)
    assert result.text == "'new'\nbetween"
    # Clear output forgets what was shown.
    code = "from IPython.display import clear_output\nprint('old'); clear_output(); print('new')"
    assert (await ok(session, code)).text == "new"
    # Clear output that waits forgets only when something comes.
    await ok(session, "from IPython.display import clear_output")
    assert (await ok(session, "print('old'); clear_output(wait=True)")).text == "old"
    assert (await ok(session, "print('old'); clear_output(wait=True); print('new')")).text == "new"
    # Rich reprs are used.
    code = """
class Rich:
    def _repr_html_(self): return "<i>rich</i>"
    def __repr__(self): return "rich"
Rich()
"""
    (item,) = (await ok(session, code)).outputs
    assert item.kind == "execute_result"
    assert dict(item.data) == {"text/plain": "rich", "text/html": "<i>rich</i>"}
    # A repr that fails does not hurt.
    code = "class Bad:\n    def __repr__(self): raise RuntimeError('no repr')\nBad()"
    result = await session.execute(code)
    assert "no repr" in (result.text or "")
    assert await value(session, "1") == 1


async def test_commands_and_bash_cells_run(session: Session, tmp_path: Path) -> None:
    """As they do in Jupyter."""
    # Shell commands.
    result = await ok(session, "!echo out; echo err >&2; exit 3")
    assert (result.output, result.stderr) == ("out\n", "err\n[exit status 3]\n")
    assert await value(session, "_exit_code") == 3
    assert await value(session, "x = !echo a; echo b\nlist(x)") == ["a", "b"]
    await ok(session, f"where = {str(tmp_path)!r}")
    assert (await ok(session, "!echo {where} $where")).output == f"{tmp_path} {tmp_path}\n"
    assert await value(session, "files = !ls /nonexistent-directory 2>/dev/null\nlist(files)") == []
    # A bash cell.
    result = await ok(session, "%%bash\nfor i in 1 2; do echo $i; done\necho err >&2")
    assert (result.output, result.stderr) == ("1\n2\n", "err\n")
    result = await session.execute("%%bash\nexit 3")
    assert result.error is not None
    assert result.error.ename == "CalledProcessError"
    # A bash cell with captured output.
    await ok(session, "%%bash --out got\necho caught")
    assert await value(session, "got") == "caught\n"
    # Cd and pwd and env.
    await ok(session, f"%cd -q {tmp_path}")
    assert await value(session, "import os; os.getcwd()") == str(tmp_path)
    assert await value(session, "%pwd") == str(tmp_path)
    await ok(session, "%env NAME=value")
    assert await value(session, "os.environ['NAME']") == "value"
    assert (await ok(session, "!echo $NAME")).output == "value\n"


async def test_magics_do_what_they_do_in_jupyter(session: Session, tmp_path: Path) -> None:
    """As people know them."""
    # Timeit and time.
    result = await ok(session, "%timeit -n 10 -r 2 pass")
    assert re.search(r"per loop .*2 runs, 10 loops each", result.output)
    assert "Wall time" in (await ok(session, "%time 1 + 1")).output
    assert "Wall time" in (await ok(session, "%%time\nx = 1")).output
    # Run runs a script.
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(__name__, sys.argv[1:])\nresult = 5\n")
    assert (await ok(session, f"%run {script} a b")).output == "__main__ ['a', 'b']\n"
    assert await value(session, "result") == 5
    script.write_text("def f():\n    raise ValueError('in the script')\nf()\n")
    # As in Jupyter: the traceback is shown, and the cell, whose magic it was, goes on.
    result = await session.execute(f"%run {script}\nafter = 1")
    assert "ValueError: in the script" in (result.text or "")
    assert "raise ValueError('in the script')" in (result.text or "")
    assert await value(session, "after") == 1
    # Writefile and load of a module.
    await ok(session, f"%%writefile {tmp_path}/written.py\nvalue = 5")
    assert await value(session, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport written; written.value") == 5
    # History and who.
    await ok(session, "first = 1")
    assert "first = 1" in (await ok(session, "%history")).output
    assert "first" in (await ok(session, "%who")).output
    # Question marks show help.
    result = await ok(session, "def documented(a):\n    'What it does.'\ndocumented?")
    assert result.text is not None
    assert "What it does." in result.text
    assert not ANSI.search(result.text)
    result = await ok(session, "documented??")
    assert "def documented(a):" in (result.text or "")
    assert (await session.execute("nothing_of_that_name?")).status == "success"
    # Magics that do not exist are errors.
    result = await session.execute("%nonsense")
    assert result.error is not None
    assert result.error.ename == "UsageError"
    assert "nonsense" in (result.text or "")


OURS_ON_THE_STACK = {
    "input": "input()",
    "a missing program": "import subprocess; subprocess.run(['/nonexistent/program'])",
    "a bad descriptor": "import os; os.write(1, 'no bytes')",
    "a signal handler": "import signal\ndef handler(*_): raise ValueError\nsignal.signal(signal.SIGUSR1, handler)\n"
    "signal.raise_signal(signal.SIGUSR1)",
    "a chain": "import subprocess\ntry:\n    subprocess.run(['/nowhere'])\nexcept OSError as e:\n    raise ValueError from e",
    "asyncio.run": "import asyncio\nasync def f(): raise ValueError\nasyncio.run(f())",
    "a bad print": "import sys; sys.stdout.write(5)",
    "a bad display": "import json\ndisplay({'application/json': b'\\xff', 'text/plain': object}, raw=1, nonsense=1)\n1/0",
}


@pytest.mark.slow
async def test_our_own_functions_are_on_no_traceback(session: Session) -> None:
    for kind, code in OURS_ON_THE_STACK.items():
        result = await session.execute(code)
        assert result.status == "error", kind
        assert "cellblock" not in (result.text or "").replace("cellblock.", "").replace("[cellblock]", ""), kind
        assert "hidden" not in (result.text or ""), kind


async def test_errors_of_every_shape_are_told(session: Session) -> None:
    group = await session.execute("raise ExceptionGroup('several', [ValueError(1), TypeError(2)])")
    assert group.error is not None
    assert group.error.ename == "ExceptionGroup"
    chained = await session.execute("try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e")
    assert "ZeroDivisionError" in (chained.text or "")
    assert "direct cause" in (chained.text or "")
    bad = await session.execute("class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E")
    assert bad.error is not None
    assert bad.error.ename == "E"
    base = await session.execute("class B(BaseException): pass\nraise B('base')")
    assert base.error is not None
    assert base.error.ename == "B"
    interrupt = await session.execute("raise KeyboardInterrupt")
    assert interrupt.error is not None
    assert interrupt.error.ename == "KeyboardInterrupt"
    cancelled = await session.execute("import asyncio\nraise asyncio.CancelledError")
    assert cancelled.error is not None
    assert cancelled.error.ename == "CancelledError"
    assert (await session.execute("raise GeneratorExit")).status == "error"
    assert (await session.execute("raise StopIteration")).status == "error"
    assert await value(session, "1") == 1


async def test_leaving_ends_the_cell_and_not_the_kernel(session: Session) -> None:
    """With a status, it is an error."""
    for code in ["exit()", "quit()", "exit", "quit", "import sys; sys.exit()", "raise SystemExit", "import sys; sys.exit(0)"]:
        await ok(session, "kept = 1")
        result = await session.execute(f"print('before')\n{code}\nprint('after')")
        assert result.status == "success"
        # A bare name is no call: IPython takes it for one only where it is the whole cell.
        assert result.output == ("before\nafter\n" if code in ("exit", "quit") else "before\n")
        assert await value(session, "kept") == 1
    # Leaving with a status is an error.
    for code in ["import sys; sys.exit(3)", "import sys; sys.exit('said why')", "exit(3)", "quit(code=1)"]:
        result = await session.execute(code)
        assert result.error is not None
        assert result.error.ename == "SystemExit"
        assert await value(session, "1") == 1


async def test_warnings_are_shown_once(session: Session) -> None:
    """Also those of the code itself."""
    result = await ok(session, "import warnings\ndef f(): warnings.warn('careful')\nf(); f()")
    assert result.stderr.count("careful") >= 1
    assert "UserWarning" in result.stderr
    assert result.output == ""
    result = await ok(session, "import sys\ntry:\n    sys.exit(1)\nexcept SystemExit: pass")
    assert result.stderr == ""
    # Deprecation warnings of the cells own code are shown.
    result = await ok(session, "import warnings; warnings.warn('old', DeprecationWarning)")
    assert "DeprecationWarning: old" in result.stderr


async def test_the_namespace_holds_only_what_ipython_puts_there(session: Session) -> None:
    """And is what scripts expect."""
    names = await value(session, "sorted(n for n in dir() if not n.startswith('_'))")
    assert names == ["In", "Out", "exit", "get_ipython", "open", "quit"]
    # Names of the interpreter are what scripts expect.
    assert await value(session, "import sys; __name__, sys.argv, sys.path[0]") == ("__main__", [""], "")
    assert await value(session, "'cellblock' in dir() or any(p.endswith('zygote') for p in sys.path)") is False
    # Classes pickle and dataclasses work in main.
    code = """
import dataclasses, pickle
@dataclasses.dataclass
class Point:
    x: int
pickle.loads(pickle.dumps(Point(3))) == Point(3)
"""
    assert await value(session, code) is True


async def test_reset_magic_forgets_variables_and_the_kernel_goes_on(session: Session) -> None:
    await ok(session, "gone = 1")
    await ok(session, "%reset -f")
    assert (await session.execute("gone")).status == "error"
    code = "import multiprocessing as m\np = m.get_context('spawn').Process(target=print)\np.start(); p.join(); p.exitcode"
    assert await value(session, code) == 0


async def test_code_can_break_the_shell_and_the_session_goes_on(session: Session) -> None:
    for code in (
        "get_ipython().run_cell_async = None",
        "get_ipython().events = None",
        "import builtins; del builtins.print",
        "import sys; sys.modules.clear()",
    ):
        result = await session.execute(code, timeout=20)
        assert result.status in ("success", "error", "died", "timeout")
        after = await session.execute("1", timeout=20)
        if after.return_value != "1":
            await session.reset()
        assert await value(session, "40 + 2") == 42
        await session.reset()


@pytest.mark.slow
async def test_matplotlib_draws_inline_without_being_asked(session: Session) -> None:
    pytest.importorskip("matplotlib")
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.title('t')"
    result = await ok(session, code)
    assert len(result.images) == 1
    assert result.images[0].read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    result = await ok(session, "for _ in range(3):\n    plt.figure(); plt.plot([1]); plt.show()")
    assert len(result.images) == 3
    assert (await ok(session, "1")).images == []
    assert "matplotlib.figure.Figure" not in (await ok(session, "fig, ax = plt.subplots()")).output


@pytest.mark.slow
async def test_pandas_shows_tables_as_html(session: Session) -> None:
    pytest.importorskip("pandas")
    result = await ok(session, "import pandas\npandas.DataFrame({'column': [1, 2]})")
    (item,) = result.outputs
    assert "<table" in str(item.data["text/html"])
    assert "column" in (result.return_value or "")
    assert "<table" not in (result.text or "")


@pytest.mark.slow
async def test_plotly_shows_figures_as_json(session: Session) -> None:
    code = "import plotly.graph_objects as go\nfigure = go.Figure(go.Bar(y=[1, 2]))\nfigure.show()\nfigure"
    result = await ok(session, code)
    for item in result.outputs:
        assert item.json("application/vnd.plotly.v1+json")["data"][0]["type"] == "bar"
    assert len(result.outputs) == 2
    assert not result.truncated


async def test_garbage_is_collected(session: Session) -> None:
    assert await value(session, "import gc; gc.isenabled()")


async def test_completion_inspection_and_history(session: Session) -> None:
    await ok(session, "number_of_things = 5\ndef shout(word): 'Say it louder.'\nimport os")
    completions = await session.complete("number_of")
    assert completions.matches == ["number_of_things"]
    assert (completions.start, completions.end) == (0, 9)
    assert "os.path" in [f"os.{m.lstrip('.').removeprefix('os.')}" for m in (await session.complete("os.pa")).matches]
    assert "Say it louder." in (await session.inspect("shout(") or "")
    assert "def shout" in (await session.inspect("shout", detail=1) or "")
    assert await session.inspect("nothing_of_that_name") is None
    await session.execute("1/0")
    last = session.history(1)[0]
    assert (last.code, last.status, last.execution_count) == ("1/0", "error", 2)


async def test_working_dir_is_restored_after_each_cell_and_says_so(host: Host, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with host.session(images_dir=tmp_path, working_dir=work) as session:
        assert await value(session, "import os; os.getcwd()") == str(work)
        result = await ok(session, "os.chdir('/')\nprint(os.getcwd())")
        assert result.output == "/\n"
        assert f"[cellblock] cwd reset to {work}" in result.stderr
        result = await ok(session, "os.getcwd()")
        assert result.return_value == repr(str(work))
        assert result.stderr == ""
        assert (await ok(session, "%cd -q /")).stderr.count("cwd reset to") == 1


async def test_a_working_dir_that_is_removed_is_told(host: Host, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with host.session(images_dir=tmp_path, working_dir=work) as session:
        result = await ok(session, f"import os; os.chdir('/'); os.rmdir({str(work)!r})")
        assert "cannot return to the working directory" in result.stderr
        assert await value(session, "1") == 1


async def test_without_a_working_dir_a_change_of_directory_stays(session: Session, tmp_path: Path) -> None:
    result = await ok(session, f"import os; os.chdir({str(tmp_path)!r})")
    assert result.stderr == ""
    assert await value(session, "os.getcwd()") == str(tmp_path)
