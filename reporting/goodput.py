"""Long runs in ``report.md``: where the time went, what each restart cost, and what raised an alarm. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from reporting.findings import LongRun
from reporting.ledger import PHASES
from reporting.markdown_parts import bullets, left_out, raw, table
from reporting.recoveries import PHASES as OF_A_RESTART
from reporting.recoveries import Recovery
from reporting.words import count, counted, duration, fraction, is_known, plain

_MOST_RUNS = 5
_MOST = 10


def goodput(runs: Sequence[LongRun]) -> Iterator[str]:
    for run in runs[:_MOST_RUNS]:
        yield from _run(run)
    yield from left_out(min(len(runs), _MOST_RUNS), len(runs), "run")


def in_order(phases: Mapping[str, float]) -> list[tuple[str, float]]:
    """The ledger's own phases in its order, then what an older or newer version called otherwise."""
    known = {name: seconds for name, seconds in phases.items() if is_known(seconds) and seconds > 0}
    order = [name for name in PHASES if name in known]
    return [(name, known[name]) for name in (*order, *sorted(set(known).difference(order)))]


def alarms_of(run: LongRun) -> list[tuple[float, str]]:
    return [(at_s, text) for at_s, kind, text in run.incidents if kind == "alarm"]


def closing(run: LongRun) -> str:
    """How much of the wall time the ledger explains."""
    explained = sum(seconds for _, seconds in in_order(run.phases))
    if not is_known(run.wall_sec) or run.wall_sec <= 0:
        return "Its wall time is not known."
    return f"The parts add up to {fraction(explained / run.wall_sec)} of {duration(run.wall_sec)}."


def costs(run: LongRun) -> str:
    """Of all restarts together."""
    device_s = sum(one.device_s for one in run.recoveries if is_known(one.device_s))
    num_redone = sum(one.num_redone for one in run.recoveries)
    restarts, steps = counted(len(run.recoveries), "restart"), counted(num_redone, "step")
    return f"{restarts} cost {duration(device_s)} of device time, {steps} done again."


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
