#!/usr/bin/env -S python -P
"""ENTRY: measures the missing cells of a sweep: expand, place, launch, and print a table.

The command itself is ``jobs.sweeps.command``.

``ray job submit --working-dir . -- python jobs/sweep.py SPEC``, or without ``python``.
"""

from jobs.cli.__main__ import longhaul


def main(argv: list[str] | None = None) -> int:
    from jobs.cli.arguments import sweep_parser
    from jobs.cli.old_libraries import refuse_old_libraries

    args = sweep_parser("sweep.py").parse_args(argv)
    if code := refuse_old_libraries("sweep"):
        return code
    from jobs.sweeps.command import sweep  # here, so that --help is instant

    return sweep(args)


if __name__ == "__main__":
    longhaul(main)
