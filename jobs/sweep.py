#!/usr/bin/env -S python -P
"""ENTRY: many cells -> what is missing -> place -> launch -> table.

The story itself is ``jobs.sweeps.command``.

``ray job submit --working-dir . -- python jobs/sweep.py SPEC``, or without ``python``.
"""

from jobs.cli.arguments import sweep_parser
from jobs.commandline.process_exit import run


def main(argv: list[str] | None = None) -> int:
    args = sweep_parser("sweep.py").parse_args(argv)
    from jobs.sweeps.command import sweep  # after --help, which must not wait for it

    return sweep(args)


if __name__ == "__main__":
    run(main)
