"""Decides about tool calls, commands and hosts that code asks for, by rules or by people."""
