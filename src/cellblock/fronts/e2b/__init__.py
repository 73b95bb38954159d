"""Serves sessions as E2B's sandbox does, for programs that were written for E2B: `cellblock serve --e2b`."""
