"""The version of cellblock, which clients, daemons and saved files compare."""

__version__ = "0.1.0"
