"""Long runs in ``report.md``: where the time went, what each restart cost, and what raised an alarm. Pure."""

from collections.abc import Iterator, Sequence

from reporting.analysis.formatting import count, duration, fraction, plain
from reporting.analysis.time_lost import alarms_of, closing, costs, in_order
from reporting.long_runs.ledger import PHASES
from reporting.long_runs.recoveries import PHASES as OF_A_RESTART
from reporting.long_runs.recoveries import Recovery
from reporting.long_runs.summary import LongRun
from reporting.markdown.parts import bullets, left_out, raw, table

_MOST_RUNS = 5
_MOST = 10


def goodput(runs: Sequence[LongRun]) -> Iterator[str]:
    for run in runs[:_MOST_RUNS]:
        yield from _run(run)
    yield from left_out(min(len(runs), _MOST_RUNS), len(runs), "run")


def _run(run: LongRun) -> Iterator[str]:
    spent = in_order(run.phases)
    if not spent and not run.recoveries:
        return
    yield f"**{plain(run.name)}**: {raw(fraction(run.goodput))} goodput. {raw(closing(run))}"
    whole = sum(seconds for _, seconds in spent)
    if whole:
        rows = [
            (plain(name, 40), raw(duration(seconds)), raw(fraction(seconds / whole)), PHASES.get(name, ""))
            for name, seconds in spent
        ]
        yield table(("time went into", "time", "share", "which is"), "lrrl", rows)
    if run.recoveries:
        yield raw(costs(run))
        heads = ("after", "ended by", *OF_A_RESTART, "together", "done again", "device time", "what happened")
        shown = run.recoveries[:_MOST]
        yield table(heads, "ll" + "r" * (len(heads) - 3) + "l", map(_restart, shown))
        yield from left_out(len(shown), len(run.recoveries), "restart")
    if alarms := alarms_of(run):
        yield bullets(
            f"**alarm** after {raw(duration(at_s))}: {plain(text, 200)}" for at_s, text in alarms[:_MOST]
        )
        yield from left_out(min(len(alarms), _MOST), len(alarms), "alarm")


def _restart(one: Recovery) -> tuple[str, ...]:
    return (
        raw(duration(one.at_s)),
        plain(one.cause, 40),
        *(raw(duration(one.phases.get(name))) for name in OF_A_RESTART),
        raw(duration(one.seconds)),
        count(one.num_redone),
        raw(duration(one.device_s)),
        plain(one.text, 120),
    )
