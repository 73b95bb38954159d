"""Helpers for all trusted packages: settings, threads, event loop turns, atomic files."""
