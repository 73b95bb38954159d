"""A benchmark of sandboxes: one suite of attacks, run by the same programs in each of them."""
