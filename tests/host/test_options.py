"""A session's options: said once, and checked before anything is started."""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import CodeExecutor, Host, InvalidInputError, Limits, SessionOptions, SyncCodeExecutor
from cellblock.host.options import SessionKeywords
from cellblock.service.session.service_options import ServiceOptions


def test_the_keywords_of_a_session_are_its_options() -> None:
    fields = {field.name: field.type for field in dataclasses.fields(SessionOptions)}
    assert {name: kind.__forward_arg__ for name, kind in SessionKeywords.__annotations__.items()} == fields


def test_an_executor_takes_every_option_with_the_same_default() -> None:
    keywords = inspect.signature(CodeExecutor).parameters
    decided_by_services = {"on_command", "on_host", "on_request", "forbid_programs", "policy"}
    for options in (SessionOptions, ServiceOptions):
        for field in dataclasses.fields(options):
            if field.name not in decided_by_services:
                assert keywords[field.name].default == field.default, field.name


async def test_keywords_win_over_options(host: Host, tmp_path: Path) -> None:
    options = SessionOptions(working_dir=tmp_path, limits=Limits(queue=10_000))
    session = host.session(options, working_dir=tmp_path / "..")
    assert (session.workspace, session.wanted.limits) == (str(tmp_path.parent), Limits(queue=10_000))
    await session.close()


@pytest.mark.parametrize("name", ["working_dir", "images_dir", "spill_dir"])
def test_a_path_with_a_nul_is_named(name: str) -> None:
    given: dict[str, Any] = {name: "/tmp/a\0b"}
    with pytest.raises(InvalidInputError, match=f"{name} has a NUL character, which no path can contain"):
        SessionOptions(**given)


@pytest.mark.parametrize("name", ["working_dir", "images_dir", "spill_dir"])
def test_an_empty_path_is_not_the_current_directory(name: str) -> None:
    """A program passes one whose variable is not set."""
    given: dict[str, Any] = {name: ""}
    with pytest.raises(InvalidInputError, match=f"{name} is empty: leave it out for the default"):
        SessionOptions(**given)


def test_a_directory_as_workspace_is_an_error_with_the_right_option() -> None:
    with pytest.raises(InvalidInputError, match=r"workspace must be 'clone', 'dirty-clone' or None, not '/x': .*working_dir"):
        SessionOptions(workspace="/x")  # type: ignore[arg-type]


async def test_an_unknown_keyword_is_an_error_at_once(host: Host) -> None:
    with pytest.raises(InvalidInputError, match="no option 'workdir'; did you mean 'working_dir'"):
        host.session(workdir=".")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cwd", "there is no option 'cwd'; did you mean 'working_dir'?"),
        ("env", "there is no option 'env'; did you mean 'kernel_env'?"),
        ("network", "there is no option 'network'; did you mean 'hosts'?"),
        ("mem_limit", "there is no option 'mem_limit'; did you mean 'memory'?"),
        ("volumes", "there is no option 'volumes'; did you mean 'read'?"),
        (
            "processes",
            "there is no option 'processes'; the sandbox's policy limits it: policy=Policy(resources=Resources(processes=…))",
        ),
        ("name", "there is no option 'name' of a session: get_or_create(name) makes sessions with names"),
        ("on_input", "there is no option 'on_input' of a session: CodeExecutor.execute() and stream() take it"),
    ],
)
@pytest.mark.parametrize("kind", [CodeExecutor, SyncCodeExecutor])
def test_the_name_that_other_libraries_have_for_an_option_leads_to_it(kind: Any, name: str, said: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        kind(**{name: "x"})
    assert str(caught.value) == said


async def test_a_session_has_its_hosts_from_its_policy(host: Host) -> None:
    with pytest.raises(InvalidInputError, match=r"'network'; it belongs to the sandbox's policy: policy=Policy\(network="):
        host.session(network=["pypi.org"])  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [
        ({"text": -1}, "text must be a whole number, at least 0, not -1"),
        ({"queue": 0}, "at least 1"),
        ({"spill": "1"}, "not '1'"),
    ],
)
def test_impossible_limits_are_refused(limits: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInputError, match=complaint):
        Limits(**limits)


def test_what_decides_about_commands_is_a_function() -> None:
    with pytest.raises(InvalidInputError, match="on_command must be a function, not 'ask'"):
        SessionOptions(on_command="ask")  # type: ignore[arg-type]


async def test_only_a_chosen_directory_for_images_must_be_writable(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)
    for images_dir in (None, str(tmp_path / "images")):  # the second is how named sessions say the default
        session = host.session(working_dir=tmp_path, images_dir=images_dir)
        await session.close()
    with pytest.raises(InvalidInputError, match=r"images_dir: .* cannot be written to by this user"):
        host.session(working_dir=tmp_path, images_dir=tmp_path / "pictures")
