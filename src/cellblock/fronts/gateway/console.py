"""The console: its page, the frames for content created by code, and the exchange of a login for a token.

`make console` builds the page from `console/`. The page requests everything else through the API, with a token in a header.
It has no cookie that another page, or a server at another port, could use.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import re
from collections.abc import Awaitable, Callable
from importlib import resources

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from cellblock.errors import AccessError
from cellblock.fronts.gateway.bodies import CheckedRoute
from cellblock.fronts.gateway.guard import CONSOLE
from cellblock.fronts.gateway.models import Strict
from cellblock.service.store.tokens import Tokens

router = APIRouter(prefix=CONSOLE, tags=["Console"], route_class=CheckedRoute)

_FILES = {
    "console.js": "text/javascript; charset=utf-8",
    "libraries.js": "text/javascript; charset=utf-8",
    "console.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_PAGE = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
"""The page's Content-Security-Policy. Text never becomes code: no script or style is inline, and no HTML is made of text."""

_FRAME = (
    "sandbox allow-scripts; default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "font-src data:; media-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
"""The policy of frames that show an output's HTML or draw a figure: anything goes within the frame, which has no origin, no
storage and no network. The page's own policy keeps the frame where it is. Scripts of an output run only on request."""

_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=(), usb=(), serial=(), clipboard-read=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Cache-Control": "no-cache",
}


class LoginRequest(Strict):
    """A login, as `cellblock console` makes it."""

    code: str = Field(max_length=200)


class LoginResponse(BaseModel):
    """The token with which the page calls the API from now on."""

    token: str


@router.get("", include_in_schema=False)
async def page(request: Request) -> Response:
    """Show the page. It says whether a token is needed."""
    text = _file("index.html")
    if not request.app.state.options.auth:
        text = text.replace(b'data-auth="tokens"', b'data-auth="none"')
    headers = {**_HEADERS, "Content-Security-Policy": _PAGE, "X-Frame-Options": "DENY"}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


@router.get("/frame", include_in_schema=False)
async def frame() -> Response:
    """Show an empty page, which shows what the page of the console gives to it, without its scripts."""
    return _frame("frame.html", _own_scripts("frame.html"))


@router.get("/frame-with-scripts", include_in_schema=False)
async def frame_with_scripts() -> Response:
    """Show the same page, in which scripts run."""
    return _frame("frame.html", "'unsafe-inline'")


@router.get("/figure", include_in_schema=False)
async def figure() -> Response:
    """Show a page that draws a figure of plotly, which the page of the console gives to it. It has plotly.js within."""
    return _frame("figure.html", _own_scripts("figure.html"))


def _frame(name: str, scripts: str) -> Response:
    headers = {**_HEADERS, "Content-Security-Policy": _FRAME.format(scripts=scripts)}
    return Response(_file(name), media_type="text/html; charset=utf-8", headers=headers)


@functools.cache
def _own_scripts(name: str) -> str:
    """Return the content security policy that admits exactly the scripts of a page."""
    own = re.findall(rb"<script>(.*?)</script>", _file(name), re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(one).digest()).decode()}'" for one in own)


def _asset(name: str) -> Callable[[], Awaitable[Response]]:
    """Return the endpoint of a file that the page loads."""

    async def asset() -> Response:
        return Response(_file(name), media_type=_FILES[name], headers=_HEADERS)

    return asset


for _name in _FILES:
    router.add_api_route(f"/{_name}", _asset(_name), include_in_schema=False, response_model=None)


@router.post("/login", response_model=LoginResponse, summary="Exchange a login for a token")
def login(request: Request, wanted: LoginRequest) -> LoginResponse:
    """Exchange what `cellblock console` has made for a token, which is valid for twelve hours. That works once.

    Raises:
        AccessError: It was used before, or is too old; or this gateway has no tokens.
    """
    tokens: Tokens | None = request.app.state.tokens
    if tokens is None:
        raise AccessError("this server has no logins: show it a token")
    return LoginResponse(token=tokens.exchange(wanted.code))


@functools.cache
def _file(name: str) -> bytes:
    """Return a file of the page: the libraries are compressed, and plotly.js is put into the page that draws figures."""
    page = resources.files("cellblock.fronts.gateway").joinpath("console_page")
    if name == "libraries.js":
        return gzip.decompress(page.joinpath(f"{name}.gz").read_bytes())
    content = page.joinpath(name).read_bytes()
    if name != "figure.html":
        return content
    # An installation without network has none: console/fetch_plotly.py.
    scripts = [entry.read_bytes() for entry in page.iterdir() if re.fullmatch(r"plotly-[\d.]+\.min\.js", entry.name)]
    return content.replace(b"/* plotly.js */", scripts[0]) if scripts else content
