"""The fork server, and what a fork of it does before the first cell: init, specialising, the worker.

Trusted and single-threaded. It holds no secret, because every kernel inherits its memory, and it runs no user code.
"""
