"""This section is the first to read: the answer, and each comparison that the answer rests on. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from reporting.analysis.answer.pairs import tallies
from reporting.analysis.findings import Choice, Comparison, Findings, MatchUp
from reporting.analysis.formatting import (
    between,
    counted,
    is_known,
    number,
    probability,
    short,
    times,
    verdict_text,
    winner,
)
from reporting.analysis.selection import Origins, comparisons_shown, origins
from reporting.page.markup import NOTHING, Markup, element, together
from reporting.page.pieces import (
    Table,
    TableCell,
    TableColumn,
    bullets,
    chip,
    details,
    left_out,
    note,
    numeric,
    origin_chips,
    section,
    table,
    without_repetition,
)

MOST_COMPARISONS = 100
_MOST_SENTENCES = 20
_MOST_DIFFERENCES = 12
_MOST_OF_MATRIX = 8
_TONES: Mapping[str, str] = {
    "faster": "good",
    "slower": "bad",
    "equivalent": "calm",
    "inconclusive": "open",
    "too few repeats": "open",
}
_COLUMNS = (
    TableColumn(title="Measured on both sides"),
    TableColumn(title="Baseline → other"),
    TableColumn(title="Verdict"),
    TableColumn(title="Ratio [95 %]", is_number=True, hint="tokens/s of the other over the baseline's"),
    TableColumn(title="n", is_number=True, hint="runs of the baseline + runs of the other"),
    TableColumn(title="p", is_number=True, hint="exact Mann-Whitney, adjusted for the number of comparisons"),
    TableColumn(title="Cliff's δ", is_number=True, hint="1: the other is always faster, -1: always slower"),
    TableColumn(title="Differs as well"),
)


_BEST_COLUMNS = (
    TableColumn(title="Question", hint="model, devices, sequence length, precision, sequences in a step"),
    TableColumn(title="Baseline at its best"),
    TableColumn(title="Other at its best"),
    TableColumn(title="Verdict"),
    TableColumn(title="Ratio [95 %]", is_number=True, hint="tokens/s of the other over the baseline's"),
    TableColumn(title="n", is_number=True, hint="runs of the baseline + runs of the other"),
)


def answer(findings: Findings, first_charts: Markup) -> Markup:
    sentences = [sentence for sentence in findings.answer if sentence.strip()]
    if not sentences:
        return section("answer", "Answer", element("p", "There are no results to answer from yet."))
    first, *others = sentences
    return section(
        "answer",
        "Answer",
        element("p", first, class_="lead"),
        first_charts,
        bullets(others[:_MOST_SENTENCES], "plain"),
        _further(others[_MOST_SENTENCES:]),
    )


def _further(sentences: Sequence[str]) -> Markup:
    """Folds away what is too much for a first screen: nothing is left out."""
    if not sentences:
        return NOTHING
    return details(counted(len(sentences), "further sentence"), bullets(sentences, "plain"))


def comparisons(findings: Findings) -> Markup:
    """Both comparisons, one below the other."""
    parts = [*_matrix(findings), *_at_the_same_settings(findings), *_at_their_best(findings)]
    return section("comparisons", "Group against group", *parts) if parts else NOTHING


def _matrix(findings: Findings) -> Iterator[Markup]:
    """Of three groups and more: each row's tokens/s over each column's."""
    found = tallies(findings.comparisons, findings.at_best)
    groups = sorted({group for pair in found for group in (pair.same.baseline, pair.same.other)})
    if len(groups) < 3:
        return
    ratios: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    for pair in found:
        both = pair.same.ratio, pair.best.ratio
        ratios[pair.same.other, pair.same.baseline] = both
        ratios[pair.same.baseline, pair.same.other] = (both[0] and 1 / both[0], both[1] and 1 / both[1])
    shown = groups[:_MOST_OF_MATRIX]
    yield table(
        Table(
            label="matrix-table",
            caption="Tokens/s of each row's group over each column's, in the median: at the same settings, "
            "and each at its best",
            columns=[TableColumn(title=""), *(TableColumn(title=short(each, 40)) for each in shown)],
            rows=[
                [TableCell(short(one, 40)), *(_of_matrix(ratios.get((one, other))) for other in shown)]
                for one in shown
            ],
            is_sortable=False,
        )
    )
    yield left_out(len(shown), len(groups), "group", "all comparisons are in findings.json")


def _of_matrix(ratios: tuple[float | None, float | None] | None) -> TableCell:
    if ratios is None:
        return TableCell("")
    same, best = ratios
    return TableCell(together((times(same), " ", element("small", f"best {times(best)}"))), same)


def _at_the_same_settings(findings: Findings) -> Iterator[Markup]:
    if not findings.comparisons:
        return
    shown = comparisons_shown(findings, MOST_COMPARISONS)
    known, reach = origins(findings), _reach(shown)
    caption = "Throughput of one group against another, each on the same model, strategy and sizes"
    found = Table(
        label="comparison-table",
        caption=caption,
        columns=_COLUMNS,
        rows=[_row(comparison, known, reach) for comparison in shown],
    )
    where = "those that say who is faster come first; all are in findings.json"
    yield element("h3", "At the same settings: what the hardware does")
    yield _tally(findings)
    yield left_out(len(shown), len(findings.comparisons), "comparison", where)
    yield table(without_repetition(found, (1,)))
    yield note(
        "The verdict is the interval's. What differs as well is not accounted for: it may be the reason."
    )


def _at_their_best(findings: Findings) -> Iterator[Markup]:
    if not findings.at_best:
        return
    reach = _reach([each.comparison for each in findings.at_best])
    shown = findings.at_best[:MOST_COMPARISONS]
    yield element("h3", "Each at its best: what a user gets")
    yield table(
        Table(
            label="best-table",
            caption="Throughput of one group against another, each with the fastest settings that were "
            "measured for the same number of sequences in a step",
            columns=_BEST_COLUMNS,
            rows=[_best_row(each, reach) for each in shown],
        )
    )
    yield left_out(len(shown), len(findings.at_best), "question", "all are in findings.json")
    yield note(
        "The ratio is that of runs that had no say in the choice of settings, so that luck is not taken for "
        "speed. A group is as good as what was measured on it: see how many settings that were."
    )


def _best_row(found: MatchUp, reach: float) -> list[TableCell]:
    subject, comparison = found.baseline.subject, found.comparison
    question = (
        f"{subject.model} x{subject.world_size} S{subject.seq_len} {subject.precision}, "
        f"{counted(found.sequences, 'sequence')}"
    )
    return [
        TableCell(element("span", short(question), class_="setting")),
        TableCell(_choice(found.baseline)),
        TableCell(_choice(found.other)),
        _verdict(comparison),
        TableCell(together((_ratio(comparison), _bar(comparison, reach))), comparison.ratio),
        _num_runs(comparison),
    ]


def _num_runs(found: Comparison) -> TableCell:
    """Both sides' numbers, which no line's end divides."""
    text = f"{found.num_baseline}\u00a0+\u00a0{found.num_other}"
    return numeric(text, min(found.num_baseline, found.num_other))


def _choice(found: Choice) -> Markup:
    subject = found.subject
    settings = f", {subject.settings}" if subject.settings else ""
    told = f"{short(found.group, 60)}: {subject.strategy}, micro-batch {found.micro_batch}{settings}"
    failed = f", {found.num_failed} failed" if found.num_failed else ""
    chosen = f"of {counted(found.num_candidates, 'setting')}{failed}"
    return element("span", short(told, 120), " ", element("small", chosen), class_="of")


def _tally(findings: Findings) -> Markup:
    found = Counter(comparison.verdict for comparison in findings.comparisons)
    tones = {**_TONES, **dict.fromkeys(sorted(found.keys() - _TONES.keys()), "bad")}
    counts = (
        together((chip(f"{found[verdict]:,} {verdict}", tone), " "))
        for verdict, tone in tones.items()
        if found[verdict]
    )
    return element("p", f"Of {counted(len(findings.comparisons), 'comparison')}: ", *counts, class_="wide")


def _row(found: Comparison, known: Origins, reach: float) -> list[TableCell]:
    return [
        TableCell(element("span", short(str(found.subject)), class_="setting")),
        TableCell(_sides(found, known)),
        _verdict(found),
        TableCell(together((_ratio(found), _bar(found, reach))), found.ratio),
        numeric(
            f"{found.num_baseline}\u00a0+\u00a0{found.num_other}", min(found.num_baseline, found.num_other)
        ),
        numeric(probability(found.p_adjusted), found.p_adjusted),
        numeric(number(found.cliffs_delta, 2), found.cliffs_delta),
        TableCell(_differences(found)),
    ]


def _sides(found: Comparison, known: Origins) -> Markup:
    """Names both sides, and says once what is true of both."""
    baseline, other = (
        known.get((group, found.subject), frozenset()) for group in (found.baseline, found.other)
    )
    names = short(found.baseline, 60), short(found.other, 60)
    if baseline == other:
        return together((f"{names[0]} → {names[1]}", origin_chips(other, "both ")))
    return together((names[0], origin_chips(baseline), " → ", names[1], origin_chips(other)))


def _verdict(found: Comparison) -> TableCell:
    tone = _TONES.get(found.verdict, "bad")
    said = element("small", _winner(found), class_="winner")
    return TableCell(together((chip(verdict_text(found), tone), " ", said)))


def _winner(found: Comparison) -> str:
    return winner(found) if found.verdict in ("faster", "slower") else "nobody"


def _ratio(found: Comparison) -> Markup:
    return together((times(found.ratio), " ", element("small", between(found.low, found.high))))


def _reach(shown: Sequence[Comparison]) -> float:
    """Returns how far from 1 the ratios' lines reach. All rows share this scale, so that they can be compared
    by eye.
    """
    bounds = [bound for found in shown for bound in (found.low, found.high) if is_known(bound)]
    return min(1.0, max((abs(bound - 1) for bound in bounds), default=0.0) or 0.05)


def _bar(found: Comparison, reach: float) -> Markup:
    """Draws the interval on a line with 1 in its middle."""
    if not is_known(found.low) or not is_known(found.high):
        return NOTHING
    low, high = (50 + 50 * min(1.0, max(-1.0, (bound - 1) / reach)) for bound in (found.low, found.high))
    mark = f"left:{low:.1f}%;width:{max(high - low, 2):.1f}%"
    return element("span", element("i", style=mark), class_="interval", aria_hidden="true")


def _differences(found: Comparison) -> Markup | str:
    if not found.differences:
        return "nothing that was recorded"
    shown = found.differences[:_MOST_DIFFERENCES]
    items = [f"{short(one.what, 60)}: {short(one.baseline, 60)} → {short(one.other, 60)}" for one in shown]
    if len(found.differences) > len(shown):
        items.append(f"and {len(found.differences) - len(shown):,} more")
    return details(counted(len(found.differences), "thing"), bullets(items))
