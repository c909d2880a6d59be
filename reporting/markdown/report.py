"""``report.md`` is the short answer for a pull request, with its cells and failures folded away. Pure.

It is GitHub's Markdown; the picture is linked by its path beside the file. Machines, nodes, goodput,
definitions and the other charts are on the HTML page, to which the second line links.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from reporting.analysis.costs.stretches import stretch_cells, stretch_heads
from reporting.analysis.findings import (
    Advice,
    CellSummary,
    Chart,
    Check,
    Choice,
    Comparison,
    Difference,
    Findings,
    MatchUp,
    Prices,
)
from reporting.analysis.formatting import (
    between,
    clean,
    count,
    counted,
    duration,
    estimate,
    fraction,
    gigabytes,
    is_known,
    middle,
    num_runs,
    number,
    percent,
    plain,
    probability,
    times,
    verdict_text,
    winner,
)
from reporting.analysis.method import how_to_repeat
from reporting.analysis.profiles import profiles_of
from reporting.analysis.read_data import HEADS, MOST_SOURCES, NUMBERS, cells, what_is_unread
from reporting.analysis.selection import (
    FailedCell,
    Origins,
    cells_shown,
    checks_shown,
    comparisons_shown,
    extent,
    failures,
    origins,
    simulated_runs,
)
from reporting.analysis.sides.causes import likeliest_first
from reporting.long_runs.summary import LongRun
from reporting.markdown.costs import costs
from reporting.markdown.parts import bullets, left_out, origin, raw, table
from reporting.markdown.profiles import profiles
from reporting.markdown.published import published

_MOST_CHARACTERS = 64_000  # GitHub takes 65,536 in a comment
_LONGEST_SENTENCE = 2_000
_MOST_COMPARISONS = 20
_MOST_CELLS = 60
_MOST = 30
_MOST_FAILURES = 10
_MOST_CHECKS = 10
_MOST_LINES = 10


def report_md(findings: Findings, charts: Sequence[Chart]) -> str:
    """Writes a report short enough for a comment on GitHub. It shows ``plots/<name>.png`` of the first chart.

    The same findings give the same text.
    """
    parts = [
        *_summary(findings),
        *_answer(findings),
        *_comparisons(findings),
        *_at_their_best(findings),
        *costs(findings),
        *published(findings),
        *_advice(findings.advice),
        *_attention(findings),
        *map(_picture, charts[:1]),
    ]
    return "\n\n".join(_as_far_as_they_fit(parts, _folded(findings))) + "\n"


def _folded(findings: Findings) -> tuple[tuple[str, list[str]], ...]:
    """Returns the folded parts: the summary line of each, and its content."""
    failed, profiled = failures(findings.cells), profiles_of(findings.cells)
    return (
        (counted(len(findings.cells), "cell"), list(_cells(findings))),
        (counted(len(profiled), "profile"), list(profiles(profiled))),
        (counted(len(findings.runs), "long run"), list(_runs(findings))),
        (counted(len(failed), "failure"), list(_failures(failed))),
        (f"{counted(len(findings.skipped), 'file')} skipped", list(_skipped(findings))),
        ("How to repeat it", list(_commands(findings))),
    )


def _as_far_as_they_fit(parts: list[str], folded: Iterable[tuple[str, list[str]]]) -> list[str]:
    """Keeps the folded parts in their order. If not all of them fit, the shortest stay."""
    there = [(summary, _fold(summary, inside)) for summary, inside in folded if inside]
    room = _MOST_CHARACTERS - sum(len(part) + 2 for part in parts)
    fitting = set()
    for summary, whole in sorted(there, key=lambda one: len(one[1])):
        room -= len(whole) + 2
        if room > 0:
            fitting.add(summary)
    elsewhere = "too long for this text, see [index.html](index.html)."
    return [*parts, *(whole if name in fitting else f"{name}: {elsewhere}" for name, whole in there)]


def _fold(summary: str, inside: Iterable[str]) -> str:
    """Folds ``inside`` away. Without the blank lines GitHub would show the Markdown inside as source text."""
    return "\n\n".join((f"<details>\n<summary>{summary}</summary>", *inside, "</details>"))


def _summary(findings: Findings) -> Iterator[str]:
    said = [*map(plain, extent(findings)), f"store {plain(findings.store, 200)}"]
    yield f"# {plain(findings.name, 200)}"
    yield f"{' · '.join(said)} · [index.html](index.html) · [metrics.csv](metrics.csv)"


def _answer(findings: Findings) -> Iterator[str]:
    sentences = [plain(sentence, _LONGEST_SENTENCE) for sentence in findings.answer if sentence.strip()]
    yield f"**{sentences[0]}**" if sentences else "**There are no results to answer from yet.**"
    if sentences[1:]:
        yield bullets(sentences[1:])


def _comparisons(findings: Findings) -> Iterator[str]:
    if not findings.comparisons:
        return
    shown, known = comparisons_shown(findings, _MOST_COMPARISONS), origins(findings)
    verdicts = Counter(found.verdict for found in findings.comparisons)
    yield "## Group against group"
    yield ", ".join(f"{num:,} {verdict}" for verdict, num in verdicts.items()) + "."
    heads = ("measured on both sides", "baseline → other", "verdict", "winner", "ratio [95 %]", "n", "p")
    yield table(heads, "llllrrr", [_comparison(found, known) for found in shown])
    yield from left_out(len(shown), len(findings.comparisons), "comparison")
    if names := [one.what for one in likeliest_first(_all_differences(findings))]:
        listed = ", ".join(plain(name, 40) for name in names[:_MOST_CHECKS])
        more = f" and {len(names) - _MOST_CHECKS:,} more" if len(names) > _MOST_CHECKS else ""
        yield f"Between the sides these differ as well, and may be the reason: {listed}{more}."


def _all_differences(findings: Findings) -> Iterable[Difference]:
    return {one.what: one for found in findings.comparisons for one in found.differences}.values()


def _at_their_best(findings: Findings) -> Iterator[str]:
    if not findings.at_best:
        return
    shown = findings.at_best[:_MOST_COMPARISONS]
    yield "## Each at its best"
    heads = ("question", "baseline at its best", "other at its best", "verdict", "ratio [95 %]", "n")
    yield table(heads, "llllrr", [_match_up(found) for found in shown])
    yield from left_out(len(shown), len(findings.at_best), "question")


def _match_up(found: MatchUp) -> list[str]:
    subject, comparison = found.baseline.subject, found.comparison
    return [
        plain(
            f"{subject.model} x{subject.world_size} S{subject.seq_len} {subject.precision}, "
            f"{counted(found.sequences, 'sequence')} a step"
        ),
        *(_choice(choice) for choice in (found.baseline, found.other)),
        plain(verdict_text(comparison)),
        f"{times(comparison.ratio)} {between(comparison.low, comparison.high)}".strip(),
        f"{comparison.num_baseline} + {comparison.num_other}",
    ]


def _choice(found: Choice) -> str:
    subject = found.subject
    settings = f", {subject.settings}" if subject.settings else ""
    told = f"{found.group}: {subject.strategy}, micro-batch {found.micro_batch}{settings}"
    return plain(f"{told}, of {counted(found.num_candidates, 'setting')}", 160)


def _comparison(found: Comparison, known: Origins) -> list[str]:
    groups = found.baseline, found.other
    flags = [known.get((group, found.subject), frozenset()) for group in groups]
    are_alike = flags[0] == flags[1]
    told = ["", origin(flags[1], "both ")] if are_alike else map(origin, flags)
    sides = (f"{plain(group, 40)}{mark}" for group, mark in zip(groups, told, strict=True))
    return [
        plain(str(found.subject)),
        " → ".join(sides),
        plain(verdict_text(found)),
        f"**{plain(winner(found))}**" if found.verdict in ("faster", "slower") else "nobody",
        f"{times(found.ratio)} {between(found.low, found.high)}".strip(),
        f"{found.num_baseline} + {found.num_other}",
        plain(probability(found.p_adjusted)),
    ]


def _advice(advice: Sequence[Advice]) -> Iterator[str]:
    if advice:
        yield "## Best strategy per goal"
        yield bullets(map(_advised, advice[:_MOST]))
        yield from left_out(min(_MOST, len(advice)), len(advice), "recommendation")


def _advised(one: Advice) -> str:
    return f"**{one.goal}**, {plain(one.group, 40)}, {plain(one.model, 40)}: {plain(one.sentence, 400)}"


def _attention(findings: Findings) -> Iterator[str]:
    """Lists only failed checks and warnings; all other checks are only counted."""
    found = [check for check in findings.checks if check.level in ("failed", "warning")]
    if not findings.checks:
        return
    levels = Counter(check.level for check in findings.checks)
    yield "## Checks"
    yield ", ".join(f"{levels[level]:,} {level}" for level in ("failed", "warning", "unknown", "ok")) + "."
    shown = [check for check in checks_shown(findings, _MOST_CHECKS) if check in found]
    if shown:
        yield bullets(map(_check, shown))
    yield from left_out(len(shown), len(found), "check")


def _check(check: Check) -> str:
    said = f"**{check.level}**: {plain(check.name)}, {plain(check.subject)}: {plain(check.found, 300)}."
    return f"{said} {plain(check.advice, 300)}" if check.advice else said


def _picture(chart: Chart) -> str:
    image = f"![{plain(chart.alt, 600)}](plots/{chart.name}.png)"
    return f"{image}\n\n**{plain(chart.title)}**: {plain(chart.caption, 600)}"


def _cells(findings: Findings) -> Iterator[str]:
    heads = ["group", "cell", "status", "tokens/s [95 %]", "n", "CV", "step, s", "memory", "scaling", "MFU"]
    shown = cells_shown(findings, _MOST_CELLS)
    rows = [_cell(cell) for cell in shown]
    if any(is_known(cell.joules_per_token) for cell in shown):
        heads.append("J/token")
        rows = [[*row, raw(number(cell.joules_per_token))] for row, cell in zip(rows, shown, strict=True)]
    if shown:
        yield table(heads, "lll" + "r" * len(heads[3:]), rows)
        yield from left_out(len(shown), len(findings.cells), "cell")


def _cell(cell: CellSummary) -> list[str]:
    speed = cell.tokens_per_sec
    flags = [flag for flag in cell.flags if flag not in ("simulated", "imported")]
    if cell.num_failed and cell.status == "ok":
        flags.append(f"{cell.num_failed} failed")
    return [
        f"{plain(cell.group, 40)}{origin(cell.flags)}",
        plain(str(cell.subject)),
        plain(", ".join((cell.status, *flags))),
        raw(estimate(speed)),
        str(num_runs(speed)),
        raw(fraction(speed.cv if speed else None)),
        raw(number(middle(cell.step_time_sec))),
        raw(gigabytes(cell.peak_vram_gb)),
        raw(percent(cell.scaling_efficiency_pct)),
        raw(fraction(cell.mfu)),
    ]


def _runs(findings: Findings) -> Iterator[str]:
    runs, simulated = findings.runs, simulated_runs(findings.rows, findings.runs)
    if runs:
        heads = ("run", "what", "steps", "done again", "tokens/s", "wall time", "goodput", "incidents")
        yield table(
            heads, "llrrrrrr", [_run(run, is_simulated=run.name in simulated) for run in runs[:_MOST]]
        )
        yield from left_out(min(_MOST, len(runs)), len(runs), "run")
        yield from _stretches(runs[:_MOST], findings.money.prices if findings.money else None)
        yield from _data([run for run in runs[:_MOST] if run.data])


def _stretches(runs: Sequence[LongRun], prices: Prices | None) -> Iterator[str]:
    found = [(run.name, one) for run in runs if len(run.stretches) > 1 for one in run.stretches]
    if found:
        heads = stretch_heads(prices)
        rows = [[plain(name), *map(plain, stretch_cells(one, prices))] for name, one in found[:_MOST]]
        yield "Where runs trained, in turn; time and cost are of the devices that they held:"
        yield table(("run", *heads), "ll" + "r" * (len(heads) - 1), rows)
        yield from left_out(len(rows), len(found), "turn")


def _data(runs: Sequence[LongRun]) -> Iterator[str]:
    found = [(run.name, source) for run in runs for source in run.data]
    if found:
        rows = [[plain(name), *map(plain, cells(source))] for name, source in found[:MOST_SOURCES]]
        yield "The data that were trained on; cut and copies are shares of the documents:"
        yield table(("run", *HEADS), "l" + "".join("r" if head in NUMBERS else "l" for head in HEADS), rows)
        yield from left_out(len(rows), len(found), "source")
        if unread := [plain(line, 400) for run in runs for line in what_is_unread(run.data)]:
            yield bullets(unread[:MOST_SOURCES])


def _run(run: LongRun, *, is_simulated: bool) -> list[str]:
    return [
        f"{plain(run.name)}{origin(['simulated'] if is_simulated else [])}",
        plain(f"{run.model} {run.strategy} x{run.world_size} on {run.group}"),
        count(run.num_steps),
        count(run.num_superseded),
        number(run.tokens_per_sec),
        raw(duration(run.wall_sec)),
        raw(fraction(run.goodput)),
        f"{len(run.incidents):,}",
    ]


def _failures(found: Sequence[FailedCell]) -> Iterator[str]:
    for failure in found[:_MOST_FAILURES]:
        yield _failure(failure)
    yield from left_out(min(_MOST_FAILURES, len(found)), len(found), "failure")


def _failure(failure: FailedCell) -> str:
    cell, where = failure.cell, f" in {plain(failure.phase, 40)}" if failure.phase else ""
    said = (
        f"**{plain(failure.status, 40)}**{where}, {failure.num_runs} of {counted(len(cell.rows), 'run')}: "
        f"{plain(cell.group, 40)}{origin(cell.flags)} {plain(str(cell.subject))}. "
        f"{plain(failure.reason, 400)}"
    )
    log = "\n".join(escape(clean(line[:160]).replace("\n", " ")) for line in failure.log_tail[-_MOST_LINES:])
    return f"{said}\n\n<pre>\n{log}\n</pre>" if log.strip() else said


def _skipped(findings: Findings) -> Iterator[str]:
    shown = findings.skipped[:_MOST]
    if shown:
        yield bullets(f"{plain(one.name, 200)}: {plain(one.reason, 300)}" for one in shown)
        yield from left_out(len(shown), len(findings.skipped), "file")


def _commands(findings: Findings) -> Iterator[str]:
    for command in how_to_repeat(findings):
        yield f"{plain(command.purpose, 300)}:\n\n<pre>\n{escape(clean(command.line))}\n</pre>"
