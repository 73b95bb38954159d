"""Persistent state of tools: registered servers, and the audit trail."""
