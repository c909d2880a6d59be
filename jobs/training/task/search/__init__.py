"""What a worker looks for before it measures: ``largest_batch`` (the largest micro-batch that fits)."""
