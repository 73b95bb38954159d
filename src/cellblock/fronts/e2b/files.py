from __future__ import annotations
from starlette.requests import Request
from starlette.responses import Response


async def download(request: Request) -> Response: ...
async def upload(request: Request) -> Response: ...
