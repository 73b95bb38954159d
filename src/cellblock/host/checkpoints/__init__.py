"""Checkpoints of sessions: making them, going back to them, branching, and recovering from them after a crash."""
