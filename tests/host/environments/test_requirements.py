"""Which arguments of ``pip install`` sessions may use."""

from __future__ import annotations

import pytest

from cellblock import InvalidInputError
from cellblock.host.environments.requirements import parse


@pytest.mark.parametrize(
    "arguments",
    [
        "-t /tmp x",
        "-t/tmp x",
        "-i http://evil.example x",
        "-qihttp://evil.example x",
        "-qt/tmp x",
        "-Ut /tmp x",
        "-qqvUf. x",
        "--index-url=https://evil.example x",
        "--extra-index-url https://evil.example x",
        "--target=/tmp x",
        "--user x",
        "-e ./x",
        "-c limits.txt x",
        "--trusted-host=evil.example x",
        "--pr x",
    ],
)
def test_a_session_does_not_choose_where_packages_come_from_or_go(arguments: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot be chosen by a session"):
        parse(arguments.split())


@pytest.mark.parametrize(
    "argument", ["https://x.example/y.whl", "git+https://x.example/y", "y @ https://x.example/y.whl", "y @ file:///etc/x.whl"]
)
def test_what_is_elsewhere_is_refused_at_once(argument: str) -> None:
    with pytest.raises(InvalidInputError, match="is not in the host's package index"):
        parse((argument,))


@pytest.mark.parametrize(
    ("arguments", "names", "files", "options"),
    [
        ("--pre x", ["x"], [], {"pre"}),
        ("./x", ["./x"], [], set()),
        ("file:///x.whl", ["/x.whl"], [], set()),
        ("-qU x", ["x"], [], {"quiet", "upgrade"}),
        ("-r first.txt", [], ["first.txt"], set()),
        ("-rfirst.txt x", ["x"], ["first.txt"], set()),
        ("--requirement=first.txt", [], ["first.txt"], set()),
        ("--ignore-installed --no-deps x>=1", ["x>=1"], [], {"ignore_installed", "no_deps"}),
    ],
)
def test_the_rest_is_understood(arguments: str, names: list[str], files: list[str], options: set[str]) -> None:
    found = parse(arguments.split())
    assert (found.names, found.files, found.options) == (names, files, options)
    assert found.local == bool(files or names[0].startswith((".", "/")))


@pytest.mark.parametrize("arguments", ["", "-q", "-r"])
def test_something_must_be_named(arguments: str) -> None:
    with pytest.raises(InvalidInputError, match="name the packages"):
        parse(arguments.split())
