"""Formats a comparison for people, programs and pull requests. The same comparison gives the same text."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from jobs.commandline.output import one_line
from jobs.commandline.text_table import TextColumn
from jobs.commandline.text_table import as_text as table_text
from jobs.reports.gate import EXIT_CODES, Gate, gate_of, whole
from reporting.analysis.comparing import SetComparison, Unmatched
from reporting.analysis.findings import Comparison, Difference
from reporting.analysis.formatting import counted, joined, plain, probability
from reporting.results.rows import Row
from reporting.results.skipped import Skipped

_MOST_DIFFERENCES = 30
_MOST_UNMATCHED = 30
_NOTHING = "-"
_ORDER = ("slower", "faster", "equivalent", "inconclusive", "too few repeats")
_SCHEMA_VERSION = 1
_ANSWERS: Mapping[Gate, str] = {
    "worse": "B is worse",
    "undecided": "undecided",
    "passes": "B is not worse",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison. ``text`` is the argument as typed."""

    text: str
    rows: tuple[Row, ...]


def as_text(
    found: SetComparison, baseline: Side, other: Side, threshold: float, unread: Sequence[Skipped] = ()
) -> str:
    """Formats the comparison for a terminal. A difference that several cells share is printed once."""
    lines = [
        f"A {baseline.text}: {counted(len(baseline.rows), 'run')}, the baseline",
        f"B {other.text}: {counted(len(other.rows), 'run')}",
        "",
    ]
    if found.comparisons:
        lines.append(table_text(_columns(found.comparisons, threshold)))
    notes = [f"only in A: {_name(one)}" for one in found.only_in_baseline[:_MOST_UNMATCHED]]
    notes += [f"only in B: {_name(one)}" for one in found.only_in_other[:_MOST_UNMATCHED]]
    notes += [f"differed{where}: {_difference(one)}" for one, where in _differences(found)]
    notes += [*_warnings(baseline, other), *_of_unread(unread)]
    answer = _ANSWERS[whole(found, threshold, unread)]
    said = f"{summary(found)}; threshold {_percent(threshold)}: {answer}"
    return "\n".join([*lines, *map(one_line, [*notes, said])]) + "\n"


def as_markdown(
    found: SetComparison, baseline: Side, other: Side, threshold: float, unread: Sequence[Skipped] = ()
) -> str:
    """Formats a comment for a pull request: the answer, then the cells that are not equivalent."""
    heads = ["cell", "A tokens/s", "B tokens/s", "B / A", "95 % interval", "p adjusted", "runs", "verdict"]
    shown = [each for each in found.comparisons if each.verdict != "equivalent"]
    lines = [
        f"**{plain(summary(found), 600)}: {_ANSWERS[whole(found, threshold, unread)]}**",
        "",
        f"B is `{_code(other.text)}`, the baseline A is `{_code(baseline.text)}`; ratios of median tokens/s, "
        f"the threshold is {_percent(threshold)}.",
    ]
    if shown:
        rows = [heads, ["---", *["---:"] * 6, "---"], *(_markdown_row(each, threshold) for each in shown)]
        lines += ["", *(f"| {' | '.join(row)} |" for row in rows)]
    notes = [f"only in A: {plain(_name(one))}" for one in found.only_in_baseline[:_MOST_UNMATCHED]]
    notes += [f"only in B: {plain(_name(one))}" for one in found.only_in_other[:_MOST_UNMATCHED]]
    notes += [f"differed{where}: {plain(_difference(one), 300)}" for one, where in _differences(found)]
    notes += map(plain, _warnings(baseline, other))
    notes += [plain(text, 300) for text in _of_unread(unread)]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]).rstrip("\n") + "\n"


def as_json(
    found: SetComparison, baseline: Side, other: Side, threshold: float, unread: Sequence[Skipped] = ()
) -> str:
    answer = whole(found, threshold, unread)
    comparisons = [{**asdict(each), "gate": gate_of(each, threshold)} for each in found.comparisons]
    document = {
        "schema_version": _SCHEMA_VERSION,
        "verdict": answer,
        "exit_code": EXIT_CODES[answer],
        "baseline": {"target": baseline.text, "num_runs": len(baseline.rows)},
        "other": {"target": other.text, "num_runs": len(other.rows)},
        "threshold": threshold,
        "simulated_groups": _groups_of(row for row in (*baseline.rows, *other.rows) if row.simulated),
        "summary": summary(found),
        "unread": [asdict(file) for file in unread],
        **asdict(found),
        "comparisons": comparisons,
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _of_unread(unread: Sequence[Skipped]) -> Iterator[str]:
    if unread:
        files = counted(len(unread), "file")
        yield f"not in it, since {files} could not be read: {joined((file.name for file in unread), 3)}"


def _warnings(baseline: Side, other: Side) -> list[str]:
    simulated = [row for row in (*baseline.rows, *other.rows) if row.simulated]
    devices = _groups_of(row for row in simulated if not row.is_emulated)
    fp8 = _groups_of(row for row in simulated if row.is_emulated)
    return [
        *([f"on simulated devices, which say nothing of real ones: {', '.join(devices)}"] if devices else []),
        *([f"with simulated fp8, which says nothing of real ones: {', '.join(fp8)}"] if fp8 else []),
    ]


def _groups_of(rows: Iterable[Row]) -> list[str]:
    return sorted({row.group for row in rows if row.group})


def summary(found: SetComparison) -> str:
    """One line such as ``B against A: slower in 1, equivalent in 3 of 4 cells``."""
    verdicts = Counter(comparison.verdict for comparison in found.comparisons)
    places: dict[str, int] = {
        **{verdict: verdicts[verdict] for verdict in (*_ORDER, *sorted(verdicts.keys() - set(_ORDER)))},
        "missing": len(found.only_in_baseline),
        "new": len(found.only_in_other),
    }
    told = ", ".join(f"{what} in {count:,}" for what, count in places.items() if count)
    return f"B against A: {told} of {counted(sum(places.values()), 'cell')}"


def _columns(found: Sequence[Comparison], threshold: float) -> list[TextColumn]:
    subjects = [each.subject for each in found]
    settings = [subject.settings for subject in subjects]
    return [
        _column("group", map(_groups, found), may_fold=True),
        _column("model", (subject.model for subject in subjects), may_fold=True),
        _column("strategy", (subject.strategy for subject in subjects)),
        _column("devices", (str(subject.world_size) for subject in subjects), is_number=True),
        _column("seq", (str(subject.seq_len) for subject in subjects), may_fold=True),
        _column("micro-batch", (subject.batch[0] for subject in subjects), may_fold=True),
        _column("grad-accum", (subject.batch[1] for subject in subjects), may_fold=True),
        _column("precision", (subject.precision for subject in subjects), may_fold=True),
        *([_column("settings", settings, may_fold=True)] if any(settings) else []),
        _column("A tokens/s", (_speed(each.baseline_tokens_per_sec) for each in found), is_number=True),
        _column("B tokens/s", (_speed(each.other_tokens_per_sec) for each in found), is_number=True),
        _column("B/A", map(_ratio, found), is_number=True),
        _column("95 % interval", map(_interval, found), is_number=True),
        _column("p adjusted", (_p(each) for each in found), is_number=True),
        _column("delta", (_delta(each) for each in found), is_number=True),
        _column("runs", map(_runs, found), is_number=True),
        _column("verdict", (_judged(each, threshold) for each in found)),
    ]


def _column(
    title: str, texts: Iterable[str], *, is_number: bool = False, may_fold: bool = False
) -> TextColumn:
    return TextColumn(title=title, texts=tuple(texts), is_number=is_number, may_fold=may_fold)


def _markdown_row(found: Comparison, threshold: float) -> list[str]:
    verdict = plain(_judged(found, threshold))
    return [
        plain(f"{_groups(found)}: {found.subject}"),
        _speed(found.baseline_tokens_per_sec),
        _speed(found.other_tokens_per_sec),
        _ratio(found),
        _interval(found),
        _p(found),
        _runs(found),
        f"**{verdict}**" if gate_of(found, threshold) == "worse" or found.verdict == "faster" else verdict,
    ]


def _judged(found: Comparison, threshold: float) -> str:
    """The verdict, or ``oom in B`` for a side without numbers, and what the gate makes of it."""
    statuses = {"A": found.baseline_status, "B": found.other_status}
    failures = ", ".join(f"{status} in {side}" for side, status in statuses.items() if status != "ok")
    gate = gate_of(found, threshold)
    return (failures or found.verdict) + ("" if gate == "passes" else f": {gate}")


def _groups(found: Comparison) -> str:
    return found.other if found.other == found.baseline else f"{found.other} / {found.baseline}"


def _speed(tokens_per_sec: float | None) -> str:
    return _NOTHING if tokens_per_sec is None else f"{tokens_per_sec:,.0f}"


def _ratio(found: Comparison) -> str:
    return _NOTHING if found.ratio is None else f"{found.ratio:.3f}"


def _interval(found: Comparison) -> str:
    return _NOTHING if found.low is None else f"{found.low:.3f} to {found.high:.3f}"


def _p(found: Comparison) -> str:
    return _NOTHING if found.p_adjusted is None else probability(found.p_adjusted)


def _delta(found: Comparison) -> str:
    return _NOTHING if found.cliffs_delta is None else f"{found.cliffs_delta:+.2f}"


def _runs(found: Comparison) -> str:
    return f"{found.num_baseline}/{found.num_other}"


def _name(one: Unmatched) -> str:
    return f"{one.group}: {one.subject}"


def _differences(found: SetComparison) -> Iterator[tuple[Difference, str]]:
    """Each distinct difference, the most frequent first.

    The text beside a difference is its number of cells, or empty if all cells have it.
    """
    seen = Counter(one for each in found.comparisons for one in each.differences)
    for one, count in seen.most_common(_MOST_DIFFERENCES):
        yield one, "" if count == len(found.comparisons) else f" in {counted(count, 'cell')}"


def _difference(one: Difference) -> str:
    return f"{one.what}: A {one.baseline}; B {one.other}"


def _code(text: str) -> str:
    return text.replace("`", "'")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
