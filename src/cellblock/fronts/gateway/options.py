"""How a gateway is set up."""

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
        auth: Whether requests need a token. Without, only this machine's own programs are served.
        token: A token for this run alone, with all rights; empty for none.
        hosts: Names by which browsers may reach it, beside ``localhost``, this machine's name and IP addresses.
        allowed_origins: Web pages that may use it and read its answers (CORS), such as ``https://example.org``; others are
            refused.
        max_body: Bytes of a request that is not an upload.
        max_upload: Bytes of an uploaded file.
        at_once: Requests of one token that are worked on at once, and streams that are open.
        rate: Requests of one token in a second, on average.
        patience: Seconds that a client may be silent in the middle of a request.
        session_options: Options of the sessions that are made here (`named.options`).
        workspaces: A directory in which each session that is made here gets a directory of its own. Without, they work in the
            current directory of the gateway.
        embedded: Whether the sessions are of the gateway's own process. Then they stay in the directory to which their code
            goes, as the kernels of Jupyter's own gateway do, unless their options name a ``working_dir``.
    """

    auth: bool = True
    token: str = ""
    hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body: int = 16 * MIB
    max_upload: int = 4096 * MIB
    at_once: int = 512
    rate: float = 5000.0
    patience: float = 30.0
    session_options: Mapping[str, Any] = field(default_factory=dict)
    workspaces: Path | None = None
    embedded: bool = False
