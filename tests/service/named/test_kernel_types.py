"""Sessions of other languages, by Jupyter kernels that run inside of the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import cellblock
from cellblock import InvalidInputError, LaunchError
from cellblock.fronts.functions.connection import call
from cellblock.operations.sessions import Complete, Inspect
from cellblock.service.named.kernel_types import cell, check_kernel_type
from cellblock.walls.sandbox.tiers import NATIVE, NONE
from daemons import own_daemon


@pytest.fixture(scope="module", autouse=True)
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A daemon of these tests' own, which ends with them."""
    with own_daemon(tmp_path_factory.mktemp("daemon")) as home:
        yield home


@pytest.mark.slow
def test_a_kernel_type_is_a_name_and_has_a_sandbox_in_which_it_works() -> None:
    for tier in (NATIVE, NONE):
        check_kernel_type("bash", tier)
    for name in ("../bash", "a b", "x" * 101):
        with pytest.raises(InvalidInputError, match="name of a Jupyter kernelspec"):
            check_kernel_type(name, NATIVE)
    with pytest.raises(InvalidInputError, match="needs isolate='native', or sandbox=False"):
        cellblock.get_or_create("landlocked", kernel_type="bash", isolate="landlock")


@pytest.mark.slow
def test_code_is_passed_on_as_it_is() -> None:
    assert cell("x = 1", "python", "python3") == "x = 1"
    assert cell("ls", "bash", "bash") == "%%bash\nls"
    assert cell("a'b\n", "python", "ir").endswith(".run('ir', \"a'b\\n\")")


@pytest.mark.clients
def test_a_kernel_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(LaunchError, match=r"no kernelspec 'cobol'.* It can read: .*python3"):
        cellblock.get_or_create("cobol", kernel_type="cobol")
    assert "cobol" not in {record.name for record in cellblock.list_kernels()}


@pytest.fixture(scope="module")
def bash(daemon: Path) -> cellblock.SessionRecord:
    """A session of bash."""
    return cellblock.get_or_create("bash", kernel_type="bash")


@pytest.mark.clients
def test_state_stays_and_is_shown(bash: cellblock.SessionRecord) -> None:
    assert (bash.kernel_type, bash.isolate) == ("bash", "native")
    cellblock.execute(bash, "greeting=hello")
    assert cellblock.execute(bash, "echo $greeting 'wörld'").output == "hello wörld\n"
    failed = cellblock.execute(bash, "nosuchcommand")
    assert failed.error is not None
    assert (failed.status, failed.error.evalue) == ("error", "127")
    assert "nosuchcommand: command not found" in failed.output


@pytest.mark.clients
def test_it_is_in_the_sandbox(bash: cellblock.SessionRecord, daemon: Path) -> None:
    assert not cellblock.execute(bash, f"ls {daemon}").ok
    assert cellblock.execute(bash, "touch here && ls here").output == "here\n"
    assert not cellblock.execute(bash, "touch /usr/here").ok


@pytest.mark.clients
def test_a_timeout_stops_the_code_and_keeps_the_state(bash: cellblock.SessionRecord) -> None:
    cellblock.execute(bash, "kept=1")
    stopped = cellblock.execute(bash, "sleep 60", timeout=0.5)
    assert (stopped.status, stopped.recovery) == ("timeout", "interrupted")
    assert stopped.text == "TimeoutError: The cell was stopped at its deadline (by an interrupt). Variables are kept."
    assert cellblock.execute(bash, "echo $kept").output == "1\n"


@pytest.mark.clients
def test_code_is_completed_in_its_language(bash: cellblock.SessionRecord) -> None:
    assert "echo" in call(Complete("bash"), b"ech")["matches"]


@pytest.mark.clients
def test_no_name_is_looked_up_in_pythons_variables(bash: cellblock.SessionRecord) -> None:
    assert "Print" not in (call(Inspect("bash", -1, 0), b"print") or "")


@pytest.mark.clients
def test_a_kernel_that_dies_says_so_and_the_next_cell_has_a_fresh_one(bash: cellblock.SessionRecord) -> None:
    cellblock.execute(bash, "lost=1")
    died = cellblock.execute(bash, "kill -9 $PPID")
    assert died.error is not None
    assert "the kernel 'bash' ended" in died.error.evalue
    assert cellblock.execute(bash, "echo fresh$lost").output == "fresh\n"
    cellblock.restart(bash)
    assert cellblock.execute(bash, "echo fresh$lost").output == "fresh\n"
