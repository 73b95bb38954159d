"""What libraries and magics find that ask for a notebook: the answer that makes their text and MIME bundles right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellblock import Host, Session
from cells import ok, value


@pytest.fixture(scope="module")
async def libraries() -> AsyncIterator[Host]:
    """A host whose kernels have large libraries from the start, as loading them takes longer than these tests."""
    async with Host(isolate="none", preload=("pandas", "matplotlib.pyplot")) as host:
        yield host


@pytest.fixture(scope="module")
async def session(zygote_host: Host, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Session]:
    """One session for all of these tests: none leaves behind what another one would see."""
    async with zygote_host.session(images_dir=tmp_path_factory.mktemp("images"), recovery="none") as session:
        yield session


@pytest.fixture
async def prepared(libraries: Host, tmp_path: Path) -> AsyncIterator[Session]:
    """A session with these libraries."""
    async with libraries.session(images_dir=tmp_path / "images") as session:
        yield session


async def test_every_way_to_ask_for_a_notebook_is_answered_with_yes(session: Session) -> None:
    code = "ip = get_ipython()\ntype(ip).__name__, 'IPKernelApp' in ip.config, ip.kernel.shell is ip"
    assert await value(session, code) == ("ZMQInteractiveShell", True, True)
    assert await value(session, "import IPython\nIPython.get_ipython() is get_ipython() is ip") is True


async def test_builtins_of_ipython_are_there_between_cells_too(session: Session) -> None:
    code = (
        "import asyncio, builtins\nkeys = {'get_ipython', 'exit', 'quit'}\nwithin, after = keys & vars(builtins).keys(), []\n"
        "asyncio.get_running_loop().call_soon(lambda: after.append(keys & vars(builtins).keys()))"
    )
    await ok(session, code)
    assert await value(session, "within, after") == ({"get_ipython"}, [{"get_ipython"}])


async def test_the_last_three_inputs_have_names(session: Session) -> None:
    for number in range(4):
        await ok(session, f"x = {number}")
    assert await value(session, "_i, _ii, _iii, In[-2] == _i") == ("x = 3", "x = 2", "x = 1", True)


@pytest.mark.slow
async def test_pandas_cuts_wide_tables_in_the_middle_and_says_so(session: Session) -> None:
    code = "import pandas as pd\npd.DataFrame({f'c{i}': [i] for i in range(30)})"
    result = await ok(session, code)
    assert result.text is not None
    assert " ... " in result.text
    assert "[1 rows x 30 columns]" in result.text
    html = result.outputs[-1].data["text/html"]
    assert isinstance(html, str)
    assert html.count("<th>c") == 20


@pytest.mark.slow
async def test_a_preloaded_pandas_knows_that_it_is_in_a_notebook(prepared: Session) -> None:
    assert await value(prepared, "import pandas as pd\npd.options.display.max_columns") == 20


async def test_rich_writes_text_without_escape_sequences(session: Session) -> None:
    result = await ok(session, "import rich\nfrom rich.table import Table\nrich.print('[bold red]hello')")
    assert result.text == "hello"
    table = (await ok(session, "table = Table('a')\ntable.add_row('[red]b')\ntable")).outputs[0]
    assert table.text is not None
    assert "\x1b" not in table.text
    assert "│ b │" in table.text
    assert "<span" in str(table.data["text/html"])
    result = await ok(session, "from rich.progress import track\nfor _ in track(range(3)): pass")
    assert result.text is not None
    assert "100%" in result.text
    assert "ipywidgets" not in result.text


async def test_tqdm_shows_a_bar_as_text(session: Session) -> None:
    result = await ok(session, "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass")
    assert result.text is not None
    assert result.text.startswith("100%|██████████| 3/3 [")
    assert not result.outputs[0].data


async def test_a_bar_of_tqdm_for_notebooks_shows_its_end(session: Session) -> None:
    result = await ok(session, "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3), desc='bar'): pass")
    assert len(result.outputs) == 1
    assert result.text is not None
    assert result.text.startswith("bar: 100%|##########| 3/3 [")
    result = await ok(session, "bar = tqdm(total=4)\nbar.update(2)\nbar.refresh()")
    assert result.text is not None
    assert "2/4" in result.text


async def test_widgets_show_what_they_have_become(session: Session) -> None:
    code = "import ipywidgets\nslider = ipywidgets.IntSlider(value=1)\ndisplay(slider)\nslider.value = 2"
    assert (await ok(session, code)).text == "IntSlider(value=2)"
    result = await ok(session, "ipywidgets.interact(lambda x: None, x=3);")
    assert result.text is not None
    assert result.text.endswith("…")  # as IPython cuts it
    for view in ("{}", "'text'", "{'model_id': []}"):
        await ok(session, f"display({{'application/vnd.jupyter.widget-view+json': {view}}}, raw=True)")


async def test_tabulate_shows_html_and_text(session: Session) -> None:
    result = await ok(session, "from tabulate import tabulate\ntabulate([[1, 2]], tablefmt='html')")
    assert set(result.outputs[-1].data) == {"text/html", "text/plain"}


@pytest.mark.slow
async def test_scikit_learn_shows_estimators_as_html_and_text(session: Session) -> None:
    result = await ok(session, "from sklearn.linear_model import Ridge\nRidge(alpha=2)")
    assert set(result.outputs[-1].data) == {"text/html", "text/plain"}
    assert result.text == "Ridge(alpha=2)"


@pytest.mark.slow
async def test_matplotlib_draws_inline_whatever_window_is_asked_for(prepared: Session) -> None:
    for asked in ("inline", "", "notebook", "widget", "qt5", "TkAgg", "auto"):
        result = await ok(
            prepared, f"%matplotlib {asked}\nimport matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1))\nplt.plot([1]);"
        )
        assert [set(item.data) for item in result.outputs if item.kind != "stream"] == [{"image/png", "text/plain"}], asked


@pytest.mark.slow
async def test_a_backend_that_draws_nowhere_and_one_that_does_not_exist(prepared: Session) -> None:
    result = await ok(prepared, "%matplotlib agg\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert not result.images
    result = await prepared.execute("%matplotlib inlin")
    assert result.error is not None
    assert "inlin" in result.error.evalue


@pytest.mark.slow
async def test_magics_of_notebooks_do_not_fail(prepared: Session) -> None:
    result = await ok(prepared, "%pylab inline\nplot([1, 2]);")
    assert len(result.images) == 1
    await ok(prepared, "%gui qt\n%gui\n%autosave 60\n%connect_info")


@pytest.mark.slow
async def test_store_keeps_variables_for_later_sessions_of_the_same_home(host: Host, tmp_path: Path) -> None:
    for code in ("answer = 42\n%store answer", "%store -r\nassert answer == 42"):
        async with host.session(kernel_env={"HOME": str(tmp_path)}) as session:
            await ok(session, code)


async def test_the_history_of_directories_begins_with_the_sessions(host: Host, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    async with host.session(working_dir=tmp_path) as session:
        assert await value(session, "str(_dh[0])") == str(tmp_path)
        await ok(session, "%cd -q below")
        await ok(session, "%cd -q -\nimport os\nassert os.path.basename(os.getcwd()) == 'below', os.getcwd()")


async def test_main_has_a_docstring_of_its_own(session: Session) -> None:
    for code in ("__doc__", "%reset -f\n__doc__"):
        result = await ok(session, code)
        assert result.return_value is not None
        assert "interactive environment" in result.return_value
    assert await value(session, "__doc__ = 'mine'\n__doc__") == "mine"


async def test_a_figure_comes_after_the_error_that_it_is_shown_behind(session: Session) -> None:
    await ok(session, "from IPython.display import display\nlate = lambda: display('late')")
    await ok(session, "get_ipython().events.register('post_execute', late)")
    result = await session.execute("print('first')\ndisplay('early')\n1 / 0")
    assert [item.kind for item in result.outputs] == ["stream", "display_data", "error", "display_data"]
    assert result.text is not None
    assert result.text.endswith("ZeroDivisionError: division by zero\n'late'")
    await ok(session, "get_ipython().events.unregister('post_execute', late)")


async def test_an_update_from_a_later_cell_is_marked_as_one(session: Session) -> None:
    await ok(session, "from IPython.display import display\nhandle = display('one', display_id='x')")
    result = await ok(session, "handle.update('two')\nhandle.update('three')")
    assert [(item.kind, item.text, item.display_id) for item in result.outputs] == [("update_display_data", "'three'", "x")]
    result = await ok(session, "handle = display('one', display_id='x')\nhandle.update('two')")
    assert [(item.kind, item.text) for item in result.outputs] == [("display_data", "'two'")]


async def test_exceptions_of_widgets_callbacks_are_errors(session: Session) -> None:
    code = (
        "import ipywidgets\nbutton = ipywidgets.Button()\nbutton.on_click(lambda _: 1 / 0)\nbutton.click()\nprint('goes on')"
    )
    result = await session.execute(code)
    assert result.status == "error"
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"
    assert "----> 3 button.on_click" in str(result.outputs[0].text)
    assert result.output == "goes on\n"
    assert [item.kind for item in result.outputs] == ["error", "stream"]
    assert str(result.text).count("ZeroDivisionError: division by zero") == 1
    assert any("----> 3 button.on_click" in part for part in result.error.traceback)
    result = await session.execute("def f(x):\n    {}['key']\nipywidgets.interact(f, x=3);")
    assert result.error is None, "interact shows it in an output widget"
    assert "KeyError" in str(result.text)


@pytest.mark.parametrize(
    "code",
    [
        "from ipywidgets import Output\nwith Output():\n    1/0\n",
        "try:\n    1/0\nexcept ZeroDivisionError:\n    get_ipython().showtraceback()\n",
    ],
)
async def test_an_exception_that_code_has_caught_and_shown_is_no_error(session: Session, code: str) -> None:
    result = await session.execute(code + "print('went on')")
    assert (result.status, result.error) == ("success", None)
    assert result.text
    assert "ZeroDivisionError" in result.text
    assert result.text.endswith("went on")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "extension"), [("JPEG", "jpg"), ("GIF", "gif"), ("WEBP", "webp"), ("PNG", "png")])
async def test_pictures_of_all_formats_are_kept_as_files(prepared: Session, kind: str, extension: str) -> None:
    code = (
        "from io import BytesIO\nfrom IPython.display import Image, display\nfrom PIL import Image as Picture\n"
        f"file = BytesIO()\nPicture.new('RGB', (5, 5)).save(file, '{kind}')\n"
        f"display({{'image/{kind.lower()}': file.getvalue()}}, raw=True)"
    )
    result = await ok(prepared, code)
    (image,) = result.images
    assert image.suffix == f".{extension}"
    assert str(image) in result.for_model()


async def test_exit_takes_the_argument_of_jupyter(session: Session) -> None:
    await ok(session, "x = 1\nexit(keep_kernel=True)")
    assert await value(session, "x") == 1


async def test_replaced_functions_are_pickled_by_their_names(session: Session) -> None:
    names = ["os.system", "os.write", "os._exit", "os.kill", "subprocess.Popen.__init__", "socket.socketpair", "asyncio.run"]
    names += ["socket.getaddrinfo", "socket.socket.connect", "signal.signal", "input", "getpass.getpass"]
    code = "import asyncio, getpass, os, pickle, signal, socket, subprocess\n"
    code += f"[pickle.loads(pickle.dumps(f)) is f for f in ({', '.join(names)})]"
    assert await value(session, code) == [True] * len(names)
    pool = "from multiprocessing import Pool\nwith Pool(2) as pool:\n    codes = pool.map(os.system, ['true', 'false'])\ncodes"
    assert await value(session, pool) == [0, 256]


async def test_a_script_that_fails_is_an_error_and_to_show_it_again_is_none(session: Session, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("1 / 0")
    result = await session.execute(f"%run {tmp_path / 'script.py'}")
    assert result.error is not None
    assert result.error.ename == "ZeroDivisionError"
    assert str(result.text).count("ZeroDivisionError: division by zero") == 1
    assert "1 / 0" in str((await ok(session, "%tb")).text)


async def test_the_kernel_has_what_widgets_look_for(session: Session) -> None:
    code = "ip = get_ipython()\nip.has_trait('kernel'), ip.get_parent(), ip.kernel.get_parent(), ip.parent_header"
    assert await value(session, code) == (True, {}, {}, {})
    code = "import comm\nip.kernel.comm_manager is comm.get_comm_manager()"
    assert await value(session, code) is True


async def test_a_magic_that_needs_a_person_says_what_to_do_instead(session: Session) -> None:
    cases: list[str] = ["%edit x.py", "%ed", "%%edit\nx = 1", "%debug"]
    for code in cases:
        await session.execute("1 / 0")
        error = (await session.execute(code)).error
        assert error is not None
        assert error.ename == "UsageError"
        assert "%run NAME" in error.evalue or "%tb" in error.evalue


async def test_the_debugger_starts_if_somebody_types_its_commands(session: Session) -> None:
    await session.execute("number = 41\n1 / 0")
    commands = ["p number + 1", "q"]
    result = await session.execute("%debug", on_input=lambda _: commands.pop(0))
    assert result.ok
    assert "42" in result.output
    assert (await session.execute("%pdb on")).ok
    failed = await session.execute("1 / 0")
    assert failed.error is not None
    assert failed.error.ename == "ZeroDivisionError"


async def test_what_a_magic_has_for_the_next_cell_is_printed(session: Session, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("x = 41\n")
    assert "x = 41" in (await ok(session, f"%load {tmp_path}/script.py")).output
