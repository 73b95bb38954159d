"""The first process of a kernel: starts the worker, reaps, runs approved programs, and ends all child processes."""
