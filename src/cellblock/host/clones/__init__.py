"""Sessions that work in a clone of a git repository, so that the user's working copy does not change."""
