"""Named sessions for plain synchronous Python: from a script, a thread, a notebook or inside a running event loop.

Sessions live in the per-user daemon, which is started on first use, so that later programs find them; with
``CELLBLOCK_STORE_BACKEND=memory`` they live in this process alone.
"""
