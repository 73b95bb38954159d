"""Receives tool calls over HTTP, from sessions or from your programs."""
