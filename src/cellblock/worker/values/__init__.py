"""The variables of a session: what there is, what has changed, in and out, saved and loaded."""
