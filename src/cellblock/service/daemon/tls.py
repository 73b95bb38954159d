"""How the two ends of a connection within a cluster prove that they belong to it: TLS, and one certificate for all."""

from __future__ import annotations

import ssl
from pathlib import Path

NAME = "cellblock"
"""The name in the certificate, whatever the address of a node is."""


def tls(credentials: Path, *, server: bool) -> ssl.SSLContext:
    """Return what a side of a connection needs to prove that it belongs to the cluster, and to check the other one.

    Args:
        credentials: A file with the cluster's certificate and its key.
        server: Whether it is for the side that listens.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(credentials)
    context.load_verify_locations(credentials)
    return context
