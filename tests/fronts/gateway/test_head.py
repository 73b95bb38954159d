"""HEAD has the status and the headers of GET, and no body."""

from __future__ import annotations

import httpx


def test_head_is_get_without_a_body(api: httpx.Client) -> None:
    for path in ("/health", "/console", "/kernels", "/nosuch"):
        found, whole = api.head(path), api.get(path)
        assert (found.status_code, found.headers["content-type"]) == (whole.status_code, whole.headers["content-type"])
        assert found.content == b""


def test_a_stream_without_an_end_ends_after_its_head(api: httpx.Client) -> None:
    assert api.head("/events").status_code == 200
    assert api.get("/health").status_code == 200
