"""The options of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayOptions:
    """The options of a gateway.

    Attributes:
        auth: Whether requests need a token. Without tokens, only local programs are served.
        token: A token for this run alone, with all rights; empty for none.
        hosts: Names by which browsers may reach the gateway, in addition to ``localhost``, this machine's name and IP
            addresses.
        allowed_origins: Web pages that may use the gateway and read its answers (CORS), such as ``https://example.org``;
            others are refused.
        ports_domain: The address below which browsers on other machines see pages of servers in sessions, such as
            ``https://ports.example.org``. All names below it must lead here, perhaps through a proxy that ends TLS and keeps
            the ``Host``. Empty for pages on this machine only.
        publish: Ports of this machine at which the server for E2B's clients shows the sandbox's servers.
        max_body: Maximum bytes of a request that is not an upload.
        max_upload: Maximum bytes of an uploaded file.
        at_once: Concurrent requests of one token, open streams included.
        rate: Requests of one token per second, on average.
        patience: Seconds that a client may pause in the middle of a request.
        session_options: Options of the sessions created here (`named.options`).
        workspaces: A directory in which each session created here gets a directory of its own. Otherwise, sessions work in
            the gateway's current directory.
        embedded: Whether the sessions belong to the gateway's own process. Their code can then change its directory
            permanently, as with Jupyter's own gateway, unless the options name a ``working_dir``.
    """

    auth: bool = True
    token: str = ""
    hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    ports_domain: str = ""
    publish: tuple[int, ...] = ()
    max_body: int = 16 * MIB
    max_upload: int = 4096 * MIB
    at_once: int = 512
    rate: float = 5000.0
    patience: float = 30.0
    session_options: Mapping[str, Any] = field(default_factory=dict)
    workspaces: Path | None = None
    embedded: bool = False
