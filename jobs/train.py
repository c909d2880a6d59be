#!/usr/bin/env -S python -P
"""ENTRY: one long run, from its newest good checkpoint, until it is done. The story is ``jobs.running``.

``ray job submit --working-dir . -- python jobs/train.py SPEC``, or without ``python``.
"""

from jobs.arguments import train_parser
from jobs.entry import run


def main(argv: list[str] | None = None) -> int:
    args = train_parser("train.py").parse_args(argv)
    if args.keep:
        from jobs.keeper import keep_running

        return keep_running(args)
    from jobs.running import train  # after --help, which must not wait for it

    return train(args)


if __name__ == "__main__":
    run(main)
