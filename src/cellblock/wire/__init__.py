"""The wire between host and worker: frames, messages, and who may say what when. No I/O happens here.

docs/wire.md is the authority on what the bytes mean.
"""
