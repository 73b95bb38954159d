"""An S3 server on this machine, of moto, with one bucket; and an environment in which s3: URLs reach it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_numbers = itertools.count()
"""Servers of one process share what they keep: each has a bucket of its own."""


@contextmanager
def s3_server() -> Iterator[str]:
    """Run the server; yield the URL of its bucket."""
    import s3fs

    with moto_server() as port, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3fs.S3FileSystem.clear_instance_cache()
        bucket = f"bucket-{next(_numbers)}"
        s3fs.S3FileSystem().mkdir(bucket)
        yield f"s3://{bucket}"
        s3fs.S3FileSystem.clear_instance_cache()


@contextmanager
def moto_server() -> Iterator[int]:
    """Run moto's server of AWS on loopback; yield its port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        yield server.get_host_and_port()[1]
    finally:
        server.stop()
