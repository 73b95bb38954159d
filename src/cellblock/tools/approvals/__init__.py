"""Decisions by rules or people about tool calls, commands and hosts that code requests."""
