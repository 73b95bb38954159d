"""Decides what code may do outside its session: tool calls, commands and hosts, by rules or by people."""
