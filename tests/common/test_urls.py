from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import InvalidInputError
from cellblock.common.urls import check, is_url, local_path, split


def test_a_url_has_a_scheme() -> None:
    for text in ("s3://bucket/a", "memory://a", "file:///a", "S3A://b/c", "a+b.c-d://"):
        assert is_url(text)


def test_anything_else_is_a_path() -> None:
    cases: list[str | Path] = ["a", "/a/b", "./s3://bucket/a", "s3:/a", "://a", "1s://a", "", Path("s3://bucket/a")]
    for path in cases:
        assert not is_url(path)


def test_a_url_is_a_folder_and_a_name() -> None:
    cases: list[tuple[str, tuple[str, str]]] = [
        ("s3://bucket/a/b.cellblock", ("s3://bucket/a", "b.cellblock")),
        ("S3://bucket/b", ("s3://bucket", "b")),
        ("memory://b", ("memory://", "b")),
        ("memory://a/b", ("memory://a", "b")),
    ]
    for url, parts in cases:
        assert split(url) == parts


def test_a_folder_is_not_a_file() -> None:
    for url in ("s3://bucket", "s3://bucket/", "s3://", "memory://a/"):
        with pytest.raises(InvalidInputError, match="not the URL of a file"):
            split(url)


def test_what_is_not_supported_is_refused() -> None:
    cases: list[tuple[str, str]] = [
        ("simplecache::s3://bucket/a", "is not a URL"),
        ("filecache://a::s3://bucket/b", "chain of URLs"),
        ("s3://bucket/../a", r"'\.' or '\.\.'"),
        ("s3://bucket/a\nb", "is not a URL"),
        ("s3://" + "a" * 3000, "is not a URL"),
        ("a/b", "is not a URL"),
    ]
    for url, why in cases:
        with pytest.raises(InvalidInputError, match=why):
            check(url)


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidInputError, match="password") as caught:
        check("sftp://user:geheim@host/a")
    assert "geheim" not in str(caught.value)
    check("sftp://user@host:22/a:b@c")


def test_a_file_url_is_a_path() -> None:
    assert local_path("file:///a/b%20c") == "/a/b c"
    assert local_path("s3://a/b") is None
    for wrong in ("file://a/b", "file://", "file:///a%00"):
        with pytest.raises(InvalidInputError, match="absolute path"):
            local_path(wrong)
