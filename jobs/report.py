#!/usr/bin/env -S python -P
"""ENTRY: turns all results in a store into one table, a few charts, a web page and an answer.

The command itself is ``jobs.reports.report``.

``ray job submit --working-dir . -- python jobs/report.py --store URL``, or without ``python``.
"""

from jobs.cli.__main__ import longhaul


def main(argv: list[str] | None = None) -> int:
    from jobs.cli.arguments import report_parser
    from jobs.cli.old_libraries import refuse_old_libraries

    args = report_parser("report.py").parse_args(argv)
    if code := refuse_old_libraries("report"):
        return code
    from jobs.reports.report import report  # here, so that --help is instant

    return report(args)


if __name__ == "__main__":
    longhaul(main)
