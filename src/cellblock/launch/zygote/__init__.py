"""The fork server, and an interpreter without one.

Trusted and single-threaded. It holds no secret, because every kernel inherits its memory, and it runs no user code.
"""
