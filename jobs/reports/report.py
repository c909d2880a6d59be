"""Makes reports from all results in a store, and copies reports to a local folder.

A report is made anew each time. The same results give the same files.
"""

import argparse
import json
import mmap
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Denied, Missing, Store, is_name
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from cluster.yaml_file import MOST_BYTES
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, complain, run_command
from jobs.commandline.output import one_line, printable
from jobs.commandline.store_location import store_base
from jobs.commandline.store_waits import open_to_read, waits_told
from jobs.commandline.usage_error import SpecError
from jobs.reports.prices_file import read_prices
from jobs.reports.yardstick import read_published, yardstick_of
from reporting.analysis.conclusions import conclude
from reporting.analysis.findings import Chart, Findings, as_plain
from reporting.charts.importing import undisturbed
from reporting.long_runs.summarising import long_runs, write_steps
from reporting.results.gathering import Gathered, gather
from reporting.results.publishing import Pulled, PullError, publish, pull, reports_of
from reporting.results.records import RecordError, parsed
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

_MOST_CHECKS = 10
_MOST_SWEEP_BYTES = 64 << 20


class NothingToReport(Exception):
    """No results were found. The message says where, and which commands put some there."""


_CODES: Mapping[type[Exception], int] = {
    SpecError: EXIT_USAGE,
    NothingToReport: EXIT_FAILED,
    PullError: EXIT_FAILED,
    OSError: EXIT_FAILED,
    **OF_STORES,
}


def report(args: argparse.Namespace) -> int:
    with waits_told("report"):
        return run_command("report", lambda: _report(args), _CODES)


def pull_reports(args: argparse.Namespace) -> int:
    with waits_told("pull"):
        return run_command("pull", lambda: _pull_reports(args), _CODES)


def _report(args: argparse.Namespace) -> int:
    if args.to and args.pull:
        raise SpecError(
            ["--to and --pull exclude each other: --to writes into a folder, and not to the store"]
        )
    prices = read_prices(args.prices) if args.prices else None
    published = read_published(args.published)
    store = open_to_read(args.store, args.wait)
    gathered = gather(store, sweeps=args.sweep)
    runs, unread = ((), ()) if args.sweep else long_runs(store)
    name = args.name or _name(gathered, [run.name for run in runs])
    with _steps(store, is_wanted=bool(runs)) as (steps, unread_steps):
        skipped = dict.fromkeys((*gathered.skipped, *unread, *unread_steps))
        findings = conclude(
            name,
            store.url,
            gathered.rows,
            runs=runs,
            skipped=tuple(skipped),
            unfinished=gathered.unfinished,
            prices=prices,
            tokens=args.tokens,
            yardstick=yardstick_of(published, gathered.rows),
        )
        if not (findings.rows or findings.runs):
            raise NothingToReport(_nothing(store, args.sweep, findings))
        files = {**_files(findings), **_specs(store, findings.rows), **steps}
        if args.to:
            place = str(args.to)
            copied: Pulled | None = _write_to(args.to, name, files)
        else:
            # Whoever writes waits for minutes, as every other writer does.
            publish(open_store(args.store, base=store_base()), name, files)
            place = f"{store.url}/reports/{name}"
            copied = pull(store, name, args.pull) if args.pull else None
    print(_as_json(findings, place) if args.json else printable(_as_text(findings, place)))
    if copied and not args.json:
        print(printable(_copied(copied, args.to or args.pull)))
    if args.open:
        _open_page(store, name, args.to or args.pull)
    return EXIT_OK


def _pull_reports(args: argparse.Namespace) -> int:
    url, name = _place(args.url)
    store = open_to_read(url, args.wait)
    names = (name,) if name else reports_of(store)
    if not names:
        raise NothingToReport(f"{store.url}: there is no report; `longhaul report` makes one")
    code = EXIT_OK
    for name in names:
        folder = args.folder if len(names) == 1 else args.folder / name
        try:
            found = pull(store, name, folder)
        except (PullError, Denied) as error:  # Whoever spoils one report keeps no other one back.
            code = complain("pull", error, EXIT_FAILED)
            continue
        print(
            _copied_json(found, name, folder) if args.json else printable(f"{name}: {_copied(found, folder)}")
        )
    return code


def _place(url: str) -> tuple[str, str | None]:
    """Splits ``STORE/reports/NAME`` into the store and the report's name, which is None for a bare store."""
    store, slash, name = url.rstrip("/").rpartition("/reports/")
    return (store, name) if slash else (url, None)


def _name(gathered: Gathered, runs: Sequence[str]) -> str:
    """The name of the only sweep or run in the report, else ``all``."""
    names = {*(row.sweep or "" for row in gathered.rows), *runs}
    return names.pop() or "all" if len(names) == 1 else "all"


def _nothing(store: Store, sweeps: Sequence[str], findings: Findings) -> str:
    where = f"{store.url}: {' and '.join(f'sweep {sweep!r}' for sweep in sweeps)}" if sweeps else store.url
    unread = "".join(f"\n  {skipped.name}: {skipped.reason}" for skipped in findings.skipped[:10])
    if unread:
        return f"{where}: none of {len(findings.skipped)} files could be read:{unread}"
    return f"{where}: there are no results; `longhaul sweep` or `longhaul import` puts some there"


def _files(findings: Findings) -> dict[str, bytes | memoryview]:
    with undisturbed():
        from reporting.charts.drawing import draw
    from reporting.results.tables import metrics_csv, metrics_parquet

    charts = draw(findings)
    files: dict[str, bytes | memoryview] = {
        "metrics.parquet": metrics_parquet(findings.rows),
        "metrics.csv": metrics_csv(findings.rows),
        "findings.json": json.dumps(as_plain(findings), indent=1).encode() + b"\n",
        **_pages(findings, charts),
    }
    return {**files, **{f"plots/{chart.name}.png": chart.png for chart in charts}}


def _specs(store: Store, rows: Sequence[Row]) -> dict[str, bytes]:
    """The spec of each sweep, so that a sweep can be run again. The text is JSON, which is valid YAML."""
    found: dict[str, bytes] = {}
    for sweep in sorted({row.sweep for row in rows if row.sweep and not row.imported}):
        # A result written by another tool may hold a sweep name that is no valid name here.
        with suppress(Missing, TooLarge, RecordError, KeyError, TypeError, RecursionError):
            if is_name(sweep):
                told = parsed(get_bounded(store, f"sweeps/{sweep}/sweep.json", most_bytes=_MOST_SWEEP_BYTES))
                found[f"specs/{sweep}.yaml"] = _spec_text(told["spec"])
    return found


def _spec_text(spec: object) -> bytes:
    """Raises ``TooLarge`` for more than is read of a spec: of deep lists, each value has a line of blanks."""
    text = ""
    for piece in json.JSONEncoder(indent=1).iterencode(spec):
        text += piece
        if len(text) > MOST_BYTES:
            raise TooLarge(f"has more than {MOST_BYTES:,} bytes")
    return text.encode() + b"\n"


def _write_to(folder: Path, name: str, files: Mapping[str, bytes | memoryview]) -> Pulled:
    """Makes ``folder`` the report, as a pull does: what an earlier report left there goes."""
    with TemporaryDirectory(prefix="longhaul-") as place:
        made = LocalStore(Path(place))
        publish(made, name, files)
        return pull(made, name, folder)


def _pages(findings: Findings, charts: Sequence[Chart]) -> dict[str, bytes]:
    from reporting.markdown.report import report_md
    from reporting.page import index_html

    return {
        "report.md": report_md(findings, charts).encode(),
        "index.html": index_html(findings, charts).encode(),
    }


@contextmanager
def _steps(store: Store, *, is_wanted: bool) -> Iterator[tuple[dict[str, memoryview], tuple[Skipped, ...]]]:
    """Yields all steps of all runs as a memory-mapped Parquet file, since they may be larger than memory.

    The file is temporary and is deleted at the end.
    """
    if not is_wanted:
        yield {}, ()
        return
    with TemporaryDirectory(prefix="longhaul-") as folder:
        path = Path(folder) / "steps.parquet"
        _, skipped = write_steps(store, path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            data = memoryview(mapped)
            try:
                yield {"steps.parquet": data}, skipped
            finally:
                data.release()


def _as_text(findings: Findings, place: str) -> str:
    worst = [check for check in findings.checks if check.level in ("failed", "warning")]
    lines = [
        *findings.answer,
        *(f"{check.level}: {check.name}: {check.subject}: {check.found}" for check in worst[:_MOST_CHECKS]),
    ]
    if len(worst) > _MOST_CHECKS:
        lines.append(f"and {len(worst) - _MOST_CHECKS} more checks that are not well")
    return "\n".join(map(one_line, [*lines, f"report: {place}"]))


def _as_json(findings: Findings, place: str) -> str:
    return json.dumps({"place": place, **as_plain(findings)}, indent=1)


def _copied(found: Pulled, folder: Path) -> str:
    changes = (
        f"{len(found.fetched)} files fetched ({found.num_bytes:,} bytes), {len(found.unchanged)} unchanged"
    )
    return f"{changes}{f', {len(found.removed)} removed' if found.removed else ''}: {folder}"


def _copied_json(found: Pulled, name: str, folder: Path) -> str:
    return json.dumps({"report": name, "folder": str(folder), **asdict(found)})


def _open_page(store: Store, name: str, folder: Path | None) -> None:
    if folder is None and not isinstance(store, LocalStore):
        raise NothingToReport(f"{store.url}: a browser can't open what is there; add --pull DIR")
    page = (folder or Path(store.url) / "reports" / name) / "index.html"
    webbrowser.open(page.resolve().as_uri())
