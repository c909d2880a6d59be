"""Says which of two groups is faster: at the same settings, and each at its best. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from reporting.analysis.findings import Comparison, MatchUp
from reporting.analysis.formatting import counted

_MOST_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What all comparisons of one pair of groups say together. ``noun`` is what they are of."""

    baseline: str
    other: str
    found: Sequence[Comparison]
    noun: str

    @property
    def ratio(self) -> float | None:
        """The median ratio of the other to the baseline; None if nothing has one."""
        known = self._ratios(self.other)
        return median(known) if known else None

    @property
    def verdicts(self) -> Counter[str]:
        return Counter(comparison.verdict for comparison in self.found)

    @property
    def leader(self) -> str | None:
        """The group that is faster more often, ``nobody`` if both are equivalent everywhere, None if that is
        open.
        """
        faster, slower = self.verdicts["faster"], self.verdicts["slower"]
        if faster != slower:
            return self.other if faster > slower else self.baseline
        return "nobody" if self.verdicts["equivalent"] == len(self.found) else None

    def clause(self) -> str:
        """Names the group that is faster in most of them, or says that neither is shown to be."""
        verdicts, num = self.verdicts, len(self.found)
        faster, slower = verdicts["faster"], verdicts["slower"]
        first, second = (self.baseline, self.other) if slower > faster else (self.other, self.baseline)
        won, lost = max(faster, slower), min(faster, slower)
        speed, of_all = _speed(self._ratios(first)), counted(num, self.noun)
        if won == num:
            return f"{first} is faster than {second} in {_all(num)}{of_all}: {speed}"
        beside = f"; {first} does {speed}" if speed else ""
        if not won:
            neither = f"neither {self.baseline} nor {self.other} is shown to be faster in {of_all}"
            return f"{neither}: {_rest(verdicts)}{beside}"
        others = [f"{second} in {lost:,}"] if lost else []
        told = ", ".join([*others, *([_rest(verdicts)] if won + lost < num else [])])
        return f"{first} is faster than {second} in {won:,} of {of_all}, {told}{beside}"

    def _ratios(self, first: str) -> list[float]:
        known = [comparison.ratio for comparison in self.found if comparison.ratio]
        return [1 / ratio for ratio in known] if first == self.baseline else known


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTally:
    """Both comparisons of one pair of groups."""

    same: Tally
    best: Tally
    match_ups: Sequence[MatchUp]


def tallies(comparisons: Sequence[Comparison], at_best: Sequence[MatchUp]) -> tuple[PairTally, ...]:
    """Returns what each pair of groups has, in the order of their names."""
    pairs = {(one.baseline, one.other) for one in (*comparisons, *(each.comparison for each in at_best))}
    return tuple(_tally(pair, comparisons, at_best) for pair in sorted(pairs))


def _tally(pair: tuple[str, str], comparisons: Sequence[Comparison], at_best: Sequence[MatchUp]) -> PairTally:
    baseline, other = pair
    same = [one for one in comparisons if (one.baseline, one.other) == pair]
    best = [each for each in at_best if (each.baseline.group, each.other.group) == pair]
    found = [each.comparison for each in best]
    return PairTally(
        same=Tally(baseline=baseline, other=other, found=same, noun="cell"),
        best=Tally(baseline=baseline, other=other, found=found, noun="question"),
        match_ups=best,
    )


def of_pairs(comparisons: Sequence[Comparison], at_best: Sequence[MatchUp]) -> Iterator[str]:
    """Yields, for each pair of groups, what both comparisons say: first that they disagree, if they do. Of
    three groups and more the one that is faster than all others is named first.
    """
    found = tallies(comparisons, at_best)
    if len(found) > 1:
        yield from _of_all(found)
    for pair in found:
        yield from _of_pair(pair)


def _of_all(found: Sequence[PairTally]) -> Iterator[str]:
    """Names the group that leads in all of its pairs, in both comparisons, if there is one."""
    groups = sorted({group for pair in found for group in (pair.same.baseline, pair.same.other)})
    for group in groups:
        own = [pair for pair in found if group in (pair.same.baseline, pair.same.other)]
        leaders = {tally.leader for pair in own for tally in (pair.same, pair.best) if tally.found}
        if leaders == {group} and len(own) == len(groups) - 1:
            yield f"{group} is faster than every other group, at the same settings and each at its best."


def disagree(same: str | None, best: str | None) -> bool:
    """Whether the leaders of both comparisons are known and not the same."""
    return same is not None and best is not None and same != best


def _of_pair(pair: PairTally) -> Iterator[str]:
    same, best = pair.same, pair.best
    if same.found and best.found and disagree(same.leader, best.leader):
        yield f"At the same settings {same.clause()}. But each at its best, {best.clause()}."
        yield from _reasons(pair.match_ups)
        return
    if same.found:
        yield _sentence(same.clause())
    if best.found:
        yield f"Each at its best setting, {best.clause()}."
        yield from _reasons(pair.match_ups)


def _reasons(match_ups: Sequence[MatchUp]) -> Iterator[str]:
    """What the groups do differently at their best, the most frequent first."""
    counts = Counter(each.why for each in match_ups if each.why)
    for why, number in counts.most_common(_MOST_REASONS):
        where = f" in {number:,} of {len(match_ups):,} questions" if len(match_ups) > 1 else ""
        yield f"At their best they differ{where}: {why}."
    if len(counts) > _MOST_REASONS:
        yield f"{counted(len(counts) - _MOST_REASONS, 'further combination')} of settings: see the table."


def _all(number: int) -> str:
    return "" if number == 1 else "all "


def _sentence(clause: str) -> str:
    """Groups keep their names' own letters."""
    return f"{clause.replace('neither', 'Neither', 1) if clause.startswith('neither ') else clause}."


def _rest(verdicts: Counter[str]) -> str:
    """Counts the verdicts that name no winner. Those of a side without numbers are its statuses."""
    known = {"equivalent": "equivalent", "inconclusive": "undecided", "too few repeats": "too few repeats"}
    failed = {each: f"{each} on one side" for each in sorted(verdicts.keys() - {*known, "faster", "slower"})}
    words = {**known, **failed}
    return ", ".join(f"{told} in {verdicts[each]:,}" for each, told in words.items() if verdicts[each])


def _speed(ratios: Sequence[float]) -> str:
    """The ratio over what both measured."""
    if not ratios:
        return ""
    spread = f" ({min(ratios):.2f}x to {max(ratios):.2f}x)" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}x the tokens/s{' in the median' if spread else ''}{spread}"
