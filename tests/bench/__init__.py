"""``make bench``: every figure beside the obvious alternative in the same run, as a ratio."""
