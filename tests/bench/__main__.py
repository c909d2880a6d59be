"""Runs every bench, one after another, or those that are named; exits 1 if a bound is missed."""

import sys

from tests.bench import (
    asking,
    checking,
    command_line,
    comparing,
    core,
    cross_entropy,
    data,
    in_memory,
    looking,
    packing,
    planning,
    recording,
    reports,
    saving,
    sessions,
    shard_starts,
    starting,
    telemetry,
    timing_cost,
    uploading,
    verdicts,
)

BENCHES = {
    bench.__name__.rpartition(".")[2]: bench
    for bench in (
        planning,
        timing_cost,
        recording,
        command_line,
        comparing,
        verdicts,
        core,
        cross_entropy,
        data,
        packing,
        shard_starts,
        reports,
        looking,
        asking,
        telemetry,
        starting,
        sessions,
        saving,
        in_memory,
        checking,
        uploading,
    )
}


def main(names: list[str]) -> int:
    results = [BENCHES[name].main() for name in names or BENCHES]
    print("all bounds are met" if all(results) else "a bound is missed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
