"""The pages that show the description of the API load nothing from elsewhere."""

from __future__ import annotations

import re

import httpx
import pytest

from cellblock.fronts.gateway.app import Gateway as Application

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("page", ["docs", "redoc"])
async def test_everything_comes_from_the_gateway(page: str, open_app: Application) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(open_app), base_url="http://127.0.0.1") as client:
        shown = await client.get(f"/{page}")
        loaded = re.findall(r"""(?:src|href|url|spec-url)(?:=|: )["']([^"']+)""", shown.text)
        assert len(loaded) >= 3
        for address in loaded:
            found = await client.get(f"/{address}")
            assert (found.status_code, "://" in address, address.startswith("/")) == (200, False, False), address
        assert shown.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await client.get("/static/../pages.py")).status_code == 404
