"""The protocols between our processes: frames, messages and their order, without I/O.

docs/wire.md is the specification.
"""
