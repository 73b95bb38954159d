"""The output of a cell: gathered within bounds, and written to files if asked."""
