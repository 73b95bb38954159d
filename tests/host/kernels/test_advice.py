"""What is said of a module that is not there, and of a file that a sandbox keeps from a cell: once, and only if it is so."""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cellblock import Host, Policy, Resources, Session
from cellblock.errors import NO_NETWORK
from cellblock.host.kernels import advice

_ENV = ".env holds secrets of this project: its sessions can neither read, write nor create it"


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("cv2", "to install it: %pip install opencv-python-headless"),
        ("sklearn", "to install it: %pip install scikit-learn"),
        ("PIL", "to install it: %pip install pillow"),
        ("yaml", "to install it: %pip install pyyaml"),
        ("bs4", "to install it: %pip install beautifulsoup4"),
        ("helpers", "if it is a package, install it: %pip install helpers"),
        ("tkinter", ""),  # a part of Python that this Python does not have
        ("pandas.nothing", ""),
        ("mcptools", ""),
        ("a'b", ""),
        ("--index-url", ""),
        ("größe", ""),
        ("x" * 101, ""),
    ],
)
def test_the_package_is_named_by_which_it_is_installed(module: str, said: str) -> None:
    assert advice.on_missing_module("ModuleNotFoundError", f"No module named '{module}'", installs=True) == said


def test_other_exceptions_and_other_messages_are_left_alone() -> None:
    assert advice.on_missing_module("ImportError", "No module named 'cv2'", installs=True) == ""
    assert (
        advice.on_missing_module("ModuleNotFoundError", "No module named 'json.x'; 'json' is not a package", installs=True)
        == ""
    )
    assert advice.on_missing_module(None, "", installs=True) == ""


@pytest.mark.parametrize("code", ["import tabula", "%run {path}"])
async def test_a_result_says_it_once_to_people_and_to_models(session: Session, tmp_path: Path, code: str) -> None:
    (tmp_path / "script.py").write_text("import tabula")
    result = await session.execute(code.format(path=tmp_path / "script.py"))
    assert result.error is not None
    assert result.error.evalue == "No module named 'tabula' (to install it: %pip install tabula-py)"
    assert (result.text or "").count("%pip install") == result.for_model().count("%pip install") == 1
    assert len([item for item in result.outputs if item.kind == "error"]) == 1


async def test_code_that_handles_the_exception_sees_pythons_own(session: Session) -> None:
    result = await session.execute("try:\n    import tabula\nexcept ImportError as error:\n    print(error, error.name)")
    assert result.text == "No module named 'tabula' tabula"


async def test_a_session_that_may_not_install_is_told_so(zygote_host: Host) -> None:
    async with zygote_host.session(policy=Policy(resources=Resources(packages=0))) as session:
        error = (await session.execute("import tabula")).error
    assert error is not None
    assert error.evalue == "No module named 'tabula' (it is not installed, and this session may not install packages)"


@pytest.mark.parametrize(
    ("name", "message", "said"),
    [
        ("PermissionError", "[Errno 13] Permission denied: '.env'", _ENV),
        ("PermissionError", "[Errno 13] Permission denied: '/w/.env'", _ENV),
        ("OSError", "[Errno 30] Read-only file system: '.env'", _ENV),
        ("IsADirectoryError", "[Errno 21] Is a directory: '.env'", _ENV),
        ("FileExistsError", "[Errno 17] File exists: '.vscode'", "programs outside the sandbox execute what .vscode contains"),
        (
            "OSError",
            "[Errno 16] Device or resource busy: 'x' -> '.mcp.json'",
            "programs outside the sandbox execute what .mcp.json",
        ),
        ("OSError", "[Errno 30] Read-only file system: '.git/config'", "a session can read .git, not write it"),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '.env'", ""),
        ("PermissionError", "[Errno 13] Permission denied: 'env'", ""),
        ("PermissionError", "[Errno 13] Permission denied: '../x.csv'", "a session can change only its workspace"),
        ("PermissionError", "[Errno 13] Permission denied", ""),
        ("ValueError", "[Errno 13] Permission denied: '.env'", ""),
        (None, "", ""),
    ],
)
def test_the_reason_is_said_of_protected_names(name: str | None, message: str, said: str) -> None:
    assert advice.on_kept_name(name, message).startswith(said)
    assert bool(advice.on_kept_name(name, message)) == bool(said)


def test_a_git_that_could_not_write_is_recognised_by_what_it_says() -> None:
    assert advice.on_output("fatal: Unable to create '/w/.git/index.lock': Read-only file system\n", "").startswith(
        "a session can read .git"
    )
    assert advice.on_output("error: could not lock config file .git/config: Read-only file system\n", "")
    assert advice.on_output("touch: cannot touch '/usr/x': Read-only file system\n", "") == ""
    assert advice.on_output("see .git/config\n" + "Read-only file system", "") == ""


@pytest.mark.parametrize(
    "said",
    [
        "curl: (6) Could not resolve host: pypi.org",
        "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com",
        "ssh: Could not resolve hostname a: Name or service not known",
        "wget: unable to resolve host address 'a'",
        "Temporary failure resolving 'deb.debian.org'",
        "socket.gaierror: [Errno -3] Temporary failure in name resolution",
        "ping: connect: Network is unreachable",
        "npm error code EAI_AGAIN",
        "[6] Couldn't resolve host name",
    ],
)
def test_a_program_that_reaches_no_host_gets_the_advice_that_code_gets(said: str) -> None:
    assert advice.on_output(f"before\n{said}\n", NO_NETWORK) == NO_NETWORK
    assert advice.on_output(f"{said} ({NO_NETWORK})\n", NO_NETWORK) == "", "it is there already"
    assert advice.on_output(f"{said}\n", "") == "", "this session has a network"
    assert advice.on_output("resolved\n", NO_NETWORK) == ""


async def test_writing_above_a_workspace_below_tmp_fails_instead_of_vanishing(native_host: Host) -> None:
    with TemporaryDirectory(dir="/tmp") as above:
        workspace = Path(above, "project")
        workspace.mkdir()
        async with native_host.session(working_dir=workspace, recovery="none") as session:
            for code in ("open('../x.csv', 'w')", "import os; os.mkdir('../x')"):
                result = await session.execute(code)
                assert result.error is not None
                assert result.error.evalue.startswith("[Errno 13] Permission denied: '../x")
                assert 'write=["DIRECTORY"]' in result.error.evalue
            assert (await session.execute("open('x.csv', 'w').write('a'); open('/tmp/x', 'w').write('b')")).ok


@pytest.mark.parametrize(("mib", "more"), [(4096, "8G"), (512, "1G"), (256, "512M"), (768, "1536M"), (3000, "6000M")])
def test_more_memory_is_twice_as_much(mib: int, more: str) -> None:
    assert advice.more_memory(mib << 20) == (
        f'for more, make a session with memory="{more}" (on the command line: --memory {more})'
    )


async def test_what_the_sandbox_refuses_is_explained(native_host: Host, tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    async with native_host.session(working_dir=tmp_path, recovery="none") as session:
        result = await session.execute("!git clone -q https://a.invalid/b")
        assert (result.text or "").endswith(f"[cellblock] {NO_NETWORK}")
        for code, said in (
            ("open('/usr/new', 'w')", 'write=["DIRECTORY"] (on the command line: --write DIRECTORY)'),
            ("open('/srv/data/x.csv')", 'read=["PATH"] (on the command line: --read PATH)'),
            ("open('/tmp/x.csv')", "/tmp"),
        ):
            failed = (await session.execute(code)).error
            assert failed is not None
            assert said in failed.evalue
        result = await session.execute("!git -c user.name=x -c user.email=x commit --allow-empty -m x")
        assert "Read-only file system" in (result.text or "")
        assert result.stderr.count("[cellblock] a session can read .git, not write it: its hooks") == 1
        failed = (await session.execute("open('.env', 'w')")).error
        assert failed is not None
        assert failed.evalue == f"[Errno 21] Is a directory: '.env' ({_ENV})"
        assert (await session.execute("try:\n    open('.env', 'w')\nexcept OSError as error:\n    print(error)")).text == (
            "[Errno 21] Is a directory: '.env'"
        )


async def test_without_a_sandbox_nothing_is_kept(zygote_host: Host, tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    async with zygote_host.session(working_dir=tmp_path, isolate="none") as session:
        failed = (await session.execute("open('.env', 'w')")).error
    assert failed is not None
    assert failed.evalue.endswith("'.env'")
