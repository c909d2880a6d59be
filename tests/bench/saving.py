"""What saving and restoring cost, each beside the obvious alternative: blocking, disk, steps, choice."""

from tests.bench import blocking, disk, resuming, stepping


def main() -> bool:
    """Takes minutes, 12 GB of memory and 10 GB of disk."""
    results = [bench.main() for bench in (blocking, disk, stepping, resuming)]
    return all(results)
