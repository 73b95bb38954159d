"""Rollouts: many short-lived sessions for evaluations and reinforcement learning, each with its own files."""
