"""Settings: which of their sources counts, what is wrong in them, and that nothing is loaded for them if there are none."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.service import settings
from cellblock.service.settings import Settings, current, explain, sources
from test_exports import modules_after


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of settings, which is not there yet; nothing else is set, and nothing is started here."""
    for name in [name for name in os.environ if name.startswith(settings.PREFIXES)]:
        monkeypatch.delenv(name)
    path = tmp_path / "config" / "cellblock" / "config.toml"
    path.parent.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return path


def said() -> dict[str, tuple[object, str]]:
    return {one.name: (one.value, one.source) for one in explain() if one.source != "default"}


def test_the_environment_counts_before_the_file_and_ours_before_that_of_kernelbox(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (current(), said()) == (Settings(), {})
    file.write_text("max_retries = 2\nexecution_timeout = 3\nkernel_idle_timeout = 4\n")
    monkeypatch.setenv("KERNELBOX_EXECUTION_TIMEOUT", "5")
    monkeypatch.setenv("KERNELBOX_KERNEL_IDLE_TIMEOUT", "6")
    monkeypatch.setenv("CELLBLOCK_KERNEL_IDLE_TIMEOUT", "7")
    assert current() == Settings(max_retries=2, execution_timeout=5.0, kernel_idle_timeout=7.0)
    assert said() == {
        "max_retries": (2, str(file)),
        "execution_timeout": (5.0, "KERNELBOX_EXECUTION_TIMEOUT"),
        "kernel_idle_timeout": (7.0, "CELLBLOCK_KERNEL_IDLE_TIMEOUT"),
    }


def test_a_key_of_many_parts_is_refused_before_it_is_parsed(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``tomllib`` takes seconds for it: the cost is quadratic."""
    monkeypatch.setattr(tomllib, "loads", lambda text: pytest.fail("it was parsed"))
    file.write_text("a" + ".a" * 30_000 + " = 1")
    with pytest.raises(InvalidInputError, match="line 1 has more than 200 dots"):
        current()


def test_a_file_that_changes_is_read_again(file: Path) -> None:
    file.write_text("max_retries = 2")
    assert current().max_retries == 2
    file.write_text("max_retries = 30")
    assert current().max_retries == 30


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("KERNELBOX_MAX_RETRIES", "many", "KERNELBOX_MAX_RETRIES is 'many': Input should be a valid integer"),
        ("CELLBLOCK_MAX_RETRIES", "0", "CELLBLOCK_MAX_RETRIES is '0': Input should be greater than or equal to 1"),
        ("KERNELBOX_EXECUTION_TIMEOUT", "nan", "KERNELBOX_EXECUTION_TIMEOUT is 'nan'"),
        ("KERNELBOX_STORE_BACKEND", "disk", "KERNELBOX_STORE_BACKEND is 'disk': Input should be 'file' or 'memory'"),
        ("CELLBLOCK_ISOLATE", "none", "CELLBLOCK_ISOLATE is 'none'"),
        ("CELLBLOCK_ENVIRONMENT_NEWEST", "7", "CELLBLOCK_ENVIRONMENT_NEWEST is '7': String should match pattern"),
    ],
)
def test_a_wrong_value_is_named_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, complaint: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidInputError, match=complaint):
        current()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max_retrys = 1", "no setting 'max_retrys'; did you mean 'max_retries'"),
        ("home = '/tmp'", "no setting 'home'"),
        ("max_retries = ", "cannot be read"),
        (f"startup_code = 0x{'f' * 5000}", "startup_code in .*config.toml is a value that is too large to show"),
        ("max_retries = 'x'", r"max_retries in .*config.toml is 'x'"),
        ("max_retries = " + 60_000 * "[", "cannot be read"),
        ("max_retries = 1" + 70_000 * " ", "more than 65536 bytes"),
    ],
)
def test_what_is_wrong_in_the_file_is_named(file: Path, text: str, complaint: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidInputError, match=complaint):
        current()


def test_a_file_that_others_can_write_is_refused(file: Path) -> None:
    file.write_text("max_retries = 1")
    file.chmod(0o666)
    with pytest.raises(InvalidInputError, match=r"is writable by other users: chmod go-w /"):
        current()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["CELLBLOCK_TOKEN", "CELLBLOCK_MCP_TOKEN", "CELLBLOCK_MCP_PROGRAMS", "CELLBLOCK_MCP_WAIT"])
def test_a_variable_that_a_front_reads_is_not_warned_about(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sources.read.cache_clear()
    monkeypatch.setenv(name, "x")
    current()


def test_a_variable_that_is_no_setting_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    sources.read.cache_clear()
    monkeypatch.setenv("CELLBLOCK_OUTPUT_CHARS_LIMIT", "5")
    with pytest.warns(UserWarning, match="CELLBLOCK_OUTPUT_CHARS_LIMIT is not a setting .*did you mean 'output_char_limit'"):
        assert current() == Settings()


def test_options_of_a_session() -> None:
    assert Settings().session_options({}) == {"idle_timeout": 1800.0, "limits": {"text": 10_000}}
    chosen = Settings(kernel_idle_timeout=0, output_char_limit=5, startup_code="x = 1", kernel_type="bash", isolate="landlock")
    assert chosen.session_options({"limits": {"displays": 2}, "startup_code": ""}) == {
        "idle_timeout": None,
        "startup_code": "",
        "kernel_type": "bash",
        "isolate": "landlock",
        "limits": {"text": 5, "displays": 2},
    }
    assert Settings(output_char_limit=0).session_options({"idle_timeout": 9}) == {"idle_timeout": 9}


@pytest.mark.slow
def test_nothing_is_loaded_if_nothing_is_set() -> None:
    loaded = modules_after("from cellblock.service.settings import current; current()")
    assert not {name.partition(".")[0] for name in loaded} & {"pydantic", "pydantic_settings", "tomllib", "asyncio"}
