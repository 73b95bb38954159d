"""Checkpoints of sessions: making them, going back to them, branching, and going on from them after a crash."""
