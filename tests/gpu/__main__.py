"""Runs all checks of the device that torch sees here; without one, says so in one line and ends well."""

import sys
from pathlib import Path

import pytest

from tests.gpu.here import nothing_here


def main() -> int:
    if why_not := nothing_here():
        print(f"gpu: {why_not}; nothing was checked")
        return 0
    arguments = ["-m", "gpu", "-q", "--no-header", "--durations=0", "--durations-min=20", *sys.argv[1:]]
    return int(pytest.main([*arguments, str(Path(__file__).parent)]))


if __name__ == "__main__":
    sys.exit(main())
