"""Measures one cell: ``measure`` (the run itself), ``feed`` (its batches), ``timing`` (its step times)."""
