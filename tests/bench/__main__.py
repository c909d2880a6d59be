"""Runs every bench, one after another; exits 1 if a bound is missed."""

import sys

from tests.bench import (
    command_line,
    comparing,
    core,
    looking,
    planning,
    recording,
    reports,
    saving,
    sessions,
    telemetry,
    timing_cost,
    uploading,
)


def main() -> int:
    results = [
        bench.main()
        for bench in (
            planning,
            timing_cost,
            recording,
            command_line,
            comparing,
            core,
            reports,
            looking,
            telemetry,
            sessions,
            saving,
            uploading,
        )
    ]
    print("all bounds are met" if all(results) else "a bound is missed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
