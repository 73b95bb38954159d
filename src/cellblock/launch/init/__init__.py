"""The first process of a kernel: makes the worker, reaps, runs approved programs, ends everything below it."""
