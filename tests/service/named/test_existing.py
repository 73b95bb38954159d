"""Options of a session that exists: another value of an option is an error that names it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from cellblock import Host
from cellblock.errors import InvalidInputError
from cellblock.service.named.existing import Given, check_existing
from cellblock.service.named.json_options import read_options, with_real_paths
from cellblock.service.named.named_sessions import NamedSessions
from named_sessions import OPTIONS


@pytest.fixture
def host() -> Host:
    return Host()


def check(host: Host, has: dict[str, Any], wanted: dict[str, Any]) -> None:
    data = with_real_paths(has)
    check_existing("s", Given(data, read_options(data, host), host), tuple(wanted), wanted)


@pytest.mark.parametrize(
    ("has", "wanted", "difference"),
    [
        ({}, {"memory": "200 MiB"}, "memory is the default, not '200 MiB'"),
        ({"memory": "1G"}, {"memory": "200M", "approve": "ask"}, "memory is '1G', not '200M'"),
        ({}, {"read": ["/usr/share"]}, r"read is the default, not \['/usr/share'\]"),
        ({"write": ["/var/tmp"]}, {"write": ["/srv"]}, "write is .*, not "),
        ({"hosts": ["a.example"]}, {"hosts": ["b.example"]}, r"hosts is \['a.example'\], not \['b.example'\]"),
        ({}, {"allow_hosts": ["a.example"]}, "allow_hosts is the default"),
        ({}, {"working_dir": "/srv"}, "working_dir is None, not '/srv'"),
        ({"working_dir": "/usr"}, {"working_dir": "/srv"}, "working_dir is '/usr', not '/srv'"),
        ({"working_dir": "/srv"}, {"images_dir": "/srv/pics"}, "images_dir is '/srv/images', not '/srv/pics'"),
        ({}, {"approve": "auto"}, "approve is the default, not 'auto'"),
        ({}, {"approve_shell_cmds": True}, "approve_shell_cmds is the default, not True"),
        ({}, {"idle_timeout": 0, "durable": True}, "idle_timeout is the default, not 0; durable is the default, not True"),
        ({"durable": True}, {"durable": False}, "durable is True, not False"),
        ({"durable": True}, {"save_every": 5}, "save_every is the default, not 5"),
        ({}, {"limits": {"text": 5}}, "limits is the default, not {'text': 5}"),
        ({}, {"preload": ["json"]}, r"preload is the default, not \['json'\]"),
        ({}, {"packages": ["six"]}, "packages is the default"),
        ({}, {"environment": {"packages": ["six"]}}, "environment is the default, not 'six'"),
        (
            {"environment": {"packages": ["six==1.16"], "title": "environment data"}},
            {"environment": {"packages": ["six==1.17"], "title": "environment data"}},
            "'environment data' had other packages when the session was made",
        ),
        ({}, {"python": "python3.11"}, "python is the default"),
        ({}, {"kernel_env": {"KEY": "secret"}}, r"kernel_env differs\. "),
        ({"startup_code": "a = 1"}, {"startup_code": "secret"}, r"startup_code differs\. "),
        ({}, {"sandbox": False}, "sandbox is the default, not False"),
        ({"sandbox": False}, {"sandbox": True}, "sandbox is False, not True"),
        ({"sandbox": False}, {"isolate": "native"}, "isolate is 'none', not 'native'"),
        ({}, {"recovery": "none"}, "recovery is the default, not 'none'"),
        ({}, {"wroking_dir": "/srv"}, "there is no option 'wroking_dir'; did you mean 'working_dir'"),
    ],
)
def test_another_option_is_an_error_that_names_it(
    host: Host, has: dict[str, Any], wanted: dict[str, Any], difference: str
) -> None:
    with pytest.raises(InvalidInputError, match=difference) as caught:
        check(host, has, wanted)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("has", "wanted"),
    [
        ({"memory": "1G"}, {"memory": "1024 MiB"}),
        ({"memory": 2**30}, {"memory": "1G"}),
        ({}, {"memory": "4G"}),
        ({"hosts": ["a.example", "b.example"]}, {"allow_hosts": ["b.example", "a.example"]}),
        ({"read": ["/usr/share"]}, {"read": "/usr/share/"}),
        ({"idle_timeout": None}, {"idle_timeout": 0}),
        ({"durable": 5}, {"durable": True}),
        ({"durable": True, "save_every": 5}, {"durable": True, "save_every": 5}),
        ({"kernel_env": {"A": "1"}, "preload": ["json"]}, {"kernel_env": {"A": "1"}, "preload": ["json"]}),
        ({}, {"approve": "ask", "sandbox": True, "recovery": "exact"}),
    ],
)
def test_the_same_options_in_other_words_are_no_error(host: Host, has: dict[str, Any], wanted: dict[str, Any]) -> None:
    check(host, has, wanted)


def test_a_link_to_the_working_directory_is_the_same_one(host: Host, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    check(host, {"current_dir": str(tmp_path / "real")}, {"working_dir": str(tmp_path / "link")})


async def test_only_chosen_options_count(sessions: NamedSessions) -> None:
    made = await sessions.create("one", OPTIONS | {"idle_timeout": 60, "current_dir": os.getcwd()})
    others = {**OPTIONS, "idle_timeout": 1800, "current_dir": "/", "startup_code": "x = 1"}
    assert await sessions.create("one", others) is made
    assert await sessions.create("one", others, chosen=["sandbox"]) is made
    with pytest.raises(InvalidInputError, match="session 'one' exists with other options: idle_timeout is 60, not 1800"):
        await sessions.create("one", others, chosen=["idle_timeout"])
