"""One session together with what serves it: tools, approvals, policy."""
