#!/usr/bin/env -S python -P
"""ENTRY: everything that ran becomes one table, a few charts, a page, and an answer.

The story itself is ``jobs.reports.report``.

``ray job submit --working-dir . -- python jobs/report.py --store URL``, or without ``python``.
"""

from jobs.cli.arguments import report_parser
from jobs.commandline.process_exit import run


def main(argv: list[str] | None = None) -> int:
    args = report_parser("report.py").parse_args(argv)
    from jobs.reports.report import report  # after --help, which must not wait for it

    return report(args)


if __name__ == "__main__":
    run(main)
