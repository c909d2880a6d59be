"""``longhaul ...``, also as ``python -m jobs.cli``, dispatches to one function per command."""

import os
from collections.abc import Callable
from typing import NoReturn


def main(argv: list[str] | None = None) -> int:
    from jobs.cli.arguments import longhaul_parser
    from jobs.cli.old_libraries import refuse_old_libraries

    parser = longhaul_parser()
    args = parser.parse_args(argv)
    match args.command:
        case None:
            from jobs.cli.first_steps import FIRST_STEPS

            print(FIRST_STEPS, end="", flush=True)
            return 0
        case command if code := refuse_old_libraries(command):
            return code
        case "init":
            from jobs.first_spec.command import init

            return init(args)
        case "sweep":
            from jobs.sweeps.command import sweep

            return sweep(args)
        case "train" if args.keep and not args.dry_run:
            from jobs.runs.supervisor import keep_running

            return keep_running(args)
        case "train":
            from jobs.runs.train import train

            return train(args)
        case "runs":
            from jobs.listing.command import runs

            return runs(args)
        case "status":
            from jobs.runs.status import status

            return status(args)
        case "watch":
            from jobs.watching.command import watch

            return watch(args)
        case "stop":
            from jobs.runs.stop import stop

            return stop(args)
        case "pack":
            from jobs.packing.command import pack

            return pack(args)
        case "data":
            from jobs.dataset.command import data

            return data(args)
        case "report":
            from jobs.reports.report import report

            return report(args)
        case "pull":
            from jobs.reports.report import pull_reports

            return pull_reports(args)
        case "compare":
            from jobs.reports.compare import compare

            return compare(args)
        case "import":
            from jobs.reports.import_results import import_results

            return import_results(args)
        case "checkpoints":
            from jobs.checkpoints.command import checkpoints

            return checkpoints(args)
        case "cluster":
            from jobs.clusters.command import cluster

            return cluster(args)
        case "slurm":
            from jobs.slurm.command import slurm

            return slurm(args)
        case "doctor":
            from jobs.doctor.command import doctor

            return doctor(args)
        case "explain":
            from jobs.explaining.command import explain

            return explain(args)
        case "completion":
            from jobs.cli.completion.command import completion

            return completion(args, parser)
        case unknown:
            raise AssertionError(f"no command {unknown!r}: argparse lets only known ones through")


def longhaul(command: Callable[[], int] = main) -> NoReturn:
    """Ends this process as ``command`` says; ``process_exit.run`` says how."""
    try:
        # Imported here, so that Ctrl-C while it is loaded is no traceback either.
        from jobs.commandline.process_exit import run

        run(command)
    except KeyboardInterrupt:
        os.write(2, b"longhaul: interrupted\n")
        os._exit(130)


if __name__ == "__main__":
    longhaul()
