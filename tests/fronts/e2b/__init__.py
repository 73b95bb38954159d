"""Tests of what E2B's clients are served."""
