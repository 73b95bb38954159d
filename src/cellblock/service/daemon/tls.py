"""TLS within a cluster, with one certificate for all members."""

from __future__ import annotations

import ssl
from pathlib import Path

NAME = "cellblock"
"""The name in the certificate, independent of the node's address."""


def tls(credentials: Path, *, server: bool) -> ssl.SSLContext:
    """Return the TLS settings of one side, which authenticates itself and verifies the other side.

    Args:
        credentials: A file with the cluster's certificate and key.
        server: Whether this is the listening side.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(credentials)
    context.load_verify_locations(credentials)
    return context
