"""Named sessions for synchronous Python: in a script, a thread, a notebook or inside a running event loop.

Sessions live in the user's daemon, which is started on first use, so that later programs find them. With
``CELLBLOCK_STORE_BACKEND=memory``, they live in this process alone.
"""
