"""One cell: ``measure`` (the page), ``feed`` (its batches), ``timing``."""
