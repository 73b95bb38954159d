"""The output of a cell: collected within limits, and written to files on request."""
