"""Fetches pages and files of an index on the trusted side, with the host's credentials."""

from __future__ import annotations

import base64
import netrc
import ssl
import urllib.request
from collections.abc import Callable
from http.client import HTTPMessage, HTTPResponse
from typing import IO
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit, urlunsplit

from cellblock.walls.packages.index import PackageIndex

_SECONDS = 30.0  # for a connection, and for each read
_AGENT = "cellblock"


class Fetcher:
    """Opens URLs of an index and of its files. All calls block: use threads."""

    def __init__(self, index: PackageIndex) -> None:
        self._index = index
        self._contexts: dict[bool, ssl.SSLContext] = {}
        self._credentials = {_origin(url): found for url in (*index.indexes, *index.links) if (found := _own_credentials(url))}

    def open(self, url: str, accept: str = "*/*") -> HTTPResponse:
        """Start to fetch a URL.

        Args:
            url: ``http`` or ``https``.
            accept: Accepted content types.

        Returns:
            The response, with status 200. The caller reads and closes it.

        Raises:
            OSError: It cannot be fetched; `urllib.error.HTTPError` has the server's status.
            ValueError: It is not an http or https URL.
        """
        request = urllib.request.Request(without_credentials(url))  # noqa: S310  # the opener below has no other handlers
        request.add_header("Accept", accept)
        request.add_header("User-Agent", _AGENT)
        request.add_header("Accept-Encoding", "identity")
        self.authorize(request, _own_credentials(url))
        try:
            response: HTTPResponse = self._opener(url).open(request, timeout=_SECONDS)
        except HTTPError as error:
            error.close()
            raise
        if response.status != 200:
            response.close()
            raise HTTPError(url, response.status, response.reason, response.headers, None)
        return response

    def _opener(self, url: str) -> urllib.request.OpenerDirector:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"only http and https URLs are supported, not {url[:100]!r}")
        proxies = None if self._index.proxy is None else {"http": self._index.proxy, "https": self._index.proxy}
        opener = urllib.request.OpenerDirector()
        for handler in (
            urllib.request.ProxyHandler(proxies),
            urllib.request.HTTPHandler(),
            urllib.request.HTTPSHandler(context=self._context(url)),
            urllib.request.HTTPDefaultErrorHandler(),
            urllib.request.HTTPErrorProcessor(),
            _Redirects(self),
        ):
            opener.add_handler(handler)
        return opener

    def _context(self, url: str) -> ssl.SSLContext:
        parts = urlsplit(url)
        checked = not {parts.hostname, parts.netloc.rpartition("@")[2]} & {*self._index.trusted}
        if (context := self._contexts.get(checked)) is None:  # reading the certificates takes longer than a request
            context = ssl.create_default_context(cafile=self._index.certificates)
            context.check_hostname = checked
            if not checked:
                context.verify_mode = ssl.CERT_NONE
            self._contexts[checked] = context
        return context

    def authorize(self, request: urllib.request.Request, own: tuple[str, str] | None = None) -> None:
        """Add the credentials for exactly this origin. Redirects to others do not carry them.

        Args:
            request: The request to authorize.
            own: Credentials from its URL.
        """
        found = own or self._credentials.get(_origin(request.full_url)) or _from_netrc(request.full_url)
        if found is not None:
            token = base64.b64encode(":".join(found).encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {token}")


class _Redirects(urllib.request.HTTPRedirectHandler):
    """A redirect handler for http and https that sends each server its own credentials only."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise HTTPError(newurl, code, "a redirect to a URL other than http and https", headers, fp)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None:
            self._fetcher.authorize(request)
        return request


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def _own_credentials(url: str) -> tuple[str, str] | None:
    parts = urlsplit(url)
    return None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))


def _from_netrc(url: str) -> tuple[str, str] | None:
    try:
        found = netrc.netrc().authenticators(urlsplit(url).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return None if found is None else (found[0] or "", found[2] or "")


def without_credentials(url: str) -> str:
    """Return a URL without user, password and fragment."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


def read_page(fetcher: Fetcher, url: str, accept: str, limit: int) -> tuple[str, str, bytes]:
    """Fetch a whole page.

    Args:
        fetcher: Fetches it.
        url: Its URL.
        accept: Accepted content types.
        limit: Its maximum size in bytes.

    Returns:
        Its URL after redirects, its content type and its body.

    Raises:
        OSError: It cannot be fetched, or is too large.
        ValueError: As for `Fetcher.open`.
    """
    with fetcher.open(url, accept) as response:
        body = response.read(limit + 1)
        if len(body) > limit:
            raise OSError(f"the page has more than {limit:,} bytes")
        return response.url, response.headers.get("Content-Type", ""), body


def download(fetcher: Fetcher, url: str, take: Callable[[bytes], object], limit: int) -> None:
    """Fetch a file.

    Args:
        fetcher: Fetches it.
        url: Its URL.
        take: Takes each piece. It may raise an exception to stop.
        limit: Its maximum size in bytes.

    Raises:
        OSError: It cannot be fetched, or is too large.
        ValueError: As for `Fetcher.open`.
    """
    with fetcher.open(url) as response:
        while piece := response.read(1024 * 1024):
            limit -= len(piece)
            if limit < 0:
                raise OSError("the file exceeds the limit of the session's packages (resources.packages)")
            take(piece)
