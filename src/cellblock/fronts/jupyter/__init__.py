"""The Jupyter protocol for named sessions, over WebSockets or ZeroMQ."""
