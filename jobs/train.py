#!/usr/bin/env -S python -P
"""ENTRY: trains one long run, from its newest good checkpoint to its end. The command is ``jobs.runs.train``.

``ray job submit --working-dir . -- python jobs/train.py SPEC``, or without ``python``.
"""

from jobs.cli.__main__ import longhaul


def main(argv: list[str] | None = None) -> int:
    from jobs.cli.arguments import train_parser
    from jobs.cli.old_libraries import refuse_old_libraries

    args = train_parser("train.py").parse_args(argv)
    if code := refuse_old_libraries("train"):
        return code
    if args.keep and not args.dry_run:
        from jobs.runs.supervisor import keep_running

        return keep_running(args)
    from jobs.runs.train import train  # here, so that --help is instant

    return train(args)


if __name__ == "__main__":
    longhaul(main)
