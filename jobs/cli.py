"""``longhaul ...``, also as ``python -m jobs.cli``: the stories and the small tools, one command each."""

from typing import NoReturn

from jobs.arguments import longhaul_parser
from jobs.entry import run


def main(argv: list[str] | None = None) -> int:
    args = longhaul_parser().parse_args(argv)
    match args.command:
        case "sweep":
            from jobs.sweeping import sweep

            return sweep(args)
        case "train" if args.keep:
            from jobs.keeper import keep_running

            return keep_running(args)
        case "train":
            from jobs.running import train

            return train(args)
        case "status":
            from jobs.inquiries import status

            return status(args)
        case "stop":
            from jobs.stopping import stop

            return stop(args)
        case "pack":
            from jobs.packing.story import pack

            return pack(args)
        case "report":
            from jobs.reports import report

            return report(args)
        case "pull":
            from jobs.reports import pull_reports

            return pull_reports(args)
        case "compare":
            from jobs.comparing import compare

            return compare(args)
        case "import":
            from jobs.importing import import_results

            return import_results(args)
        case "checkpoints":
            from jobs.checkpoints.commands import checkpoints

            return checkpoints(args)
        case "cluster":
            from jobs.clusters import cluster

            return cluster(args)
        case "doctor":
            from jobs.doctor.story import doctor

            return doctor(args)
        case unknown:
            raise AssertionError(f"no command {unknown!r}: argparse lets only known ones through")


def longhaul() -> NoReturn:
    run(main)


if __name__ == "__main__":
    longhaul()
