"""Checkpoints of sessions: create, restore, branch, and recover from crashes."""
