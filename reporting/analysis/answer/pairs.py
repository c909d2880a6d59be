"""Says which of two groups is faster: at the same settings, and each at its best. Pure."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import median
from typing import Literal

from reporting.analysis.findings import Comparison, MatchUp
from reporting.analysis.formatting import counted, joined, short

_MOST_REASONS = 3
# More pairs than those of four groups are in the table alone.
_MOST_PAIRS = 6
_LONGEST_NAME = 60

# How a group stands beside another: faster in all, faster more often than slower, neither, or slower.
Stand = Literal["all", "more", "open", "behind", "not compared"]


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

    def stand(self, group: str) -> Stand:
        if not self.found:
            return "not compared"
        if self.leader == group:
            won = "faster" if group == self.other else "slower"
            return "all" if self.verdicts[won] == len(self.found) else "more"
        return "open" if self.leader in (None, "nobody") else "behind"

    def clause(self) -> str:
        """Names the group that is faster in most of them, or says that neither is shown to be."""
        verdicts, num = self.verdicts, len(self.found)
        faster, slower = verdicts["faster"], verdicts["slower"]
        leading = self.baseline if slower > faster else self.other
        baseline, other = _name(self.baseline), _name(self.other)
        first, second = (baseline, other) if slower > faster else (other, baseline)
        won, lost = max(faster, slower), min(faster, slower)
        speed, of_all = self._speed(leading), counted(num, self.noun)
        if won == num:
            return f"{first} is faster than {second} in {_all(num)}{of_all}: {speed}"
        beside = f"; {first} does {speed}" if speed else ""
        rest = [_rest(self.found)] if won + lost < num else []
        if won == lost:
            stand = "ahead" if won else "shown to be faster"
            told = ", ".join([*([f"each is faster in {won:,}"] if won else []), *rest])
            return f"neither {baseline} nor {other} is {stand} in {of_all}: {told}{beside}"
        told = ", ".join([*([f"{second} in {lost:,}"] if lost else []), *rest])
        return f"{first} is faster than {second} in {won:,} of {of_all}, {told}{beside}"

    def _speed(self, first: str) -> str:
        """The ratio over what both measured. Of one comparison with its interval, of several with the least
        and the most of them.
        """
        ratios = self._ratios(first)
        if not ratios:
            return ""
        if len(ratios) > 1:
            spread = f"{self.noun}s: {min(ratios):.2f}x to {max(ratios):.2f}x"
            return f"{median(ratios):.2f}x the tokens/s in the median ({spread})"
        found = next(comparison for comparison in self.found if comparison.ratio)
        low, high = found.low, found.high
        if not low or not high:
            return f"{ratios[0]:.2f}x the tokens/s"
        if first == self.baseline:
            low, high = 1 / high, 1 / low
        return f"{ratios[0]:.2f}x the tokens/s (95 %: {low:.2f}x to {high:.2f}x)"

    def _ratios(self, first: str) -> list[float]:
        known = [comparison.ratio for comparison in self.found if comparison.ratio]
        return [1 / ratio for ratio in known] if first == self.baseline else known


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTally:
    """Both comparisons of one pair of groups."""

    same: Tally
    best: Tally
    match_ups: Sequence[MatchUp]

    @property
    def groups(self) -> tuple[str, str]:
        return self.same.baseline, self.same.other

    @property
    def best_or_same(self) -> Tally:
        """Where each side has a single setting, which is the same, that is its best."""
        return self.best if self.best.found else self.same


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


def of_pairs(
    groups: Collection[str], comparisons: Sequence[Comparison], at_best: Sequence[MatchUp]
) -> Iterator[str]:
    """Yields, for each pair of groups, what both comparisons say: first that they disagree, if they do. Of
    three groups and more the one that leads is named first. ``groups`` are all that ran anything.
    """
    found = tallies(comparisons, at_best)
    leader = _leader_of_all(found) if len(found) > 1 else None
    if leader:
        yield _of_all(leader, sorted({*groups} - {leader}), found)
    shown = sorted(found, key=lambda pair: leader not in pair.groups)[:_MOST_PAIRS]
    for pair in shown:
        yield from _of_pair(pair)
    if len(found) > len(shown):
        yield f"{counted(len(found) - len(shown), 'further pair')} of groups: see the table of comparisons."
    alone = sorted({*groups} - {group for pair in found for group in pair.groups})
    if found and alone:
        yield f"Not compared with any group, since no other ran the same: {joined(alone)}."


def _leader_of_all(found: Sequence[PairTally]) -> str | None:
    """The only group that leads in a pair and is behind in none; None if there are several such groups."""
    stands = [
        (group, tally.stand(group))
        for pair in found
        for group in pair.groups
        for tally in (pair.same, pair.best)
    ]
    ahead = {group for group, stand in stands if stand in ("all", "more")}
    leaders = ahead - {group for group, stand in stands if stand == "behind"}
    return leaders.pop() if len(leaders) == 1 else None


def _of_all(leader: str, others: Sequence[str], found: Sequence[PairTally]) -> str:
    """Says what is shown of the leading group against each other one, in both comparisons."""
    own = {group: pair for pair in found if leader in pair.groups for group in pair.groups}
    same, best = (
        {other: tally_of(own[other]).stand(leader) if other in own else "not compared" for other in others}
        for tally_of in (attrgetter("same"), attrgetter("best_or_same"))
    )
    name = _name(leader)
    if same == best:
        both = " and each at its best" if any(pair.best.found for pair in found) else ""
        return f"{name} is {_stands(same, 'cell')}, at the same settings{both}."
    return (
        f"At the same settings {name} is {_stands(same, 'cell')}. "
        f"Each at its best, it is {_stands(best, 'question')}."
    )


def _stands(stands: Mapping[str, str], noun: str) -> str:
    if set(stands.values()) == {"all"}:
        return "faster than every other group"
    # The leading group is behind nobody.
    texts: Mapping[str, str] = {
        "all": f"faster than {{}} in all {noun}s of both",
        "more": f"faster than {{}} in more {noun}s than slower",
        "open": "not shown to be faster than {}",
        "not compared": "not compared with {}",
    }
    found = {
        text: [_name(other) for other, own in stands.items() if own == stand] for stand, text in texts.items()
    }
    told = [text.format(joined(names)) for text, names in found.items() if names]
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])}, and {told[-1]}"


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


def _name(group: str) -> str:
    return short(group, _LONGEST_NAME)


def _all(number: int) -> str:
    return "" if number == 1 else "all "


def _sentence(clause: str) -> str:
    """Groups keep their names' own letters."""
    return f"{clause.replace('neither', 'Neither', 1) if clause.startswith('neither ') else clause}."


def _rest(found: Sequence[Comparison]) -> str:
    """Counts the verdicts that name no winner. Those of a side without numbers are its statuses."""
    words = {"equivalent": "equivalent", "inconclusive": "undecided", "too few repeats": "too few repeats"}
    counts = Counter(words[each.verdict] for each in found if each.verdict in words)
    failed = Counter(told for each in found for told in _failed(each))
    told = [*((word, counts[word]) for word in words.values() if counts[word]), *sorted(failed.items())]
    return ", ".join(f"{word} in {count:,}" for word, count in told)


def _failed(found: Comparison) -> Iterator[str]:
    """Yields why a side has no numbers, and which side that is."""
    for group, status in ((found.baseline, found.baseline_status), (found.other, found.other_status)):
        if status != "ok":
            yield f"{status} on {_name(group)}"
