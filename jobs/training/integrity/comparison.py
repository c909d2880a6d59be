"""Decides from what ranks computed of the same micro-batch which of them is at fault. Pure.

Who differs from more than half of those that should agree with it is at fault. Where no such majority exists,
as of two, nobody knows which one is.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

WEIGHTS, SAMPLES, PARAMETERS, LINK = "weights", "samples", "parameters", "messages"
KEPT = "kept weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One round in which each rank gave a message to all: whose messages arrived wrong here.
    ``is_sum_right``: a sum over all ranks was what it had to be.
    """

    wrong_senders: tuple[int, ...]
    is_sum_right: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one rank has to compare, as digests.

    * ``device`` names it for people, ``node`` is where it is.
    * ``kind`` is what it computes on: other kinds may round otherwise.
    * ``samples`` is the micro-batch as it arrived.
    * ``held`` are its parameters and moments, by what they are: who holds the same should hold it alike.
    * ``computed`` has for each quantity, such as ``loss``, what each computation gave.
    * ``exchanges`` are what it sent and got, round by round.
    """

    device: str
    node: str
    kind: str
    samples: str
    held: Mapping[str, str]
    computed: Mapping[str, tuple[str, ...]]
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """``faulty`` maps ranks to what they have otherwise than the others. ``undecided`` are quantities that
    differ, and nobody knows on which rank they are wrong. ``varying`` are those that differ from one
    computation to the next, so nobody is blamed for them.
    """

    faulty: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    varying: tuple[str, ...] = ()

    @property
    def is_clean(self) -> bool:
        return not self.faulty and not self.undecided


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """Of one quantity."""

    faulty: frozenset[int] = frozenset()
    is_undecided: bool = False
    is_varying: bool = False


def judge(looks: Sequence[Look], *, repeats: bool, apart: Collection[str] = ()) -> Finding:
    """``looks`` are in the ranks' order. ``repeats``: what is computed twice on one kind of device is the
    same to the bit, so who differs from itself is at fault. Quantities in ``apart`` are not compared.
    """
    ranks = range(len(looks))
    # By quantity, those that should agree, and what each has.
    groups: list[tuple[str, dict[int, tuple[str, ...]]]] = [
        (SAMPLES, {rank: (looks[rank].samples,) for rank in ranks})
    ]
    for what in dict.fromkeys(what for look in looks for what in look.held):
        groups.append(
            (WEIGHTS, {rank: (looks[rank].held[what],) for rank in ranks if what in looks[rank].held})
        )
    for name in dict.fromkeys(name for look in looks for name in look.computed):
        if name not in apart:
            groups += [(name, group) for group in _by_kind(looks, name)]
    verdicts = [(LINK, _verdict_on_links(looks))]
    verdicts += [(name, _verdict(group, repeats=repeats)) for name, group in groups]
    return Finding(
        faulty=_faulty(verdicts),
        undecided=_names(name for name, one in verdicts if one.is_undecided),
        varying=_names(name for name, one in verdicts if one.is_varying),
    )


def together(first: Sequence[Look], again: Sequence[Look], *, repeats: bool) -> list[Look]:
    """The ranks' newest looks, with what the ``first`` ones showed beside them: exchanges, whose results are
    known, and computations that must repeat. Elsewhere a computation may well come out otherwise once.
    """
    return [
        replace(
            newest,
            exchanges=before.exchanges + newest.exchanges,
            computed=_both(before.computed, newest.computed) if repeats else newest.computed,
        )
        for before, newest in zip(first, again, strict=True)
    ]


def _both(
    before: Mapping[str, tuple[str, ...]], newest: Mapping[str, tuple[str, ...]]
) -> Mapping[str, tuple[str, ...]]:
    return {name: before[name] + values for name, values in newest.items()}


def judge_kept(are_kept: Sequence[bool]) -> Finding:
    """Of each rank, whether it still held what it had held, though nothing updated it."""
    lost = [rank for rank, is_kept in enumerate(are_kept) if not is_kept]
    if 2 * len(lost) > len(are_kept):
        return Finding(undecided=(KEPT,))
    return Finding(faulty=dict.fromkeys(lost, (KEPT,)))


def _by_kind(looks: Sequence[Look], name: str) -> list[dict[int, tuple[str, ...]]]:
    groups: dict[str, dict[int, tuple[str, ...]]] = {}
    for rank, look in enumerate(looks):
        groups.setdefault(look.kind, {})[rank] = look.computed[name]
    return list(groups.values())


def _verdict(group: Mapping[int, tuple[str, ...]], *, repeats: bool) -> _Verdict:
    unsteady = frozenset(rank for rank, values in group.items() if len(set(values)) > 1)
    if unsteady and not (repeats and 2 * len(unsteady) <= len(group)):
        return _Verdict(is_varying=True)
    values = Counter(values[0] for rank, values in group.items() if rank not in unsteady)
    (usual, count), *others = values.most_common()
    if others and 2 * count <= len(group):
        return _Verdict(is_undecided=True)
    others_than = frozenset(rank for rank, values in group.items() if set(values) != {usual})
    return _Verdict(faulty=others_than)


def _verdict_on_links(looks: Sequence[Look]) -> _Verdict:
    """At fault is who alone got a wrong sum, or whom all messages that arrived wrong have in common as their
    sender, or as their receiver. One way alone has two ends, and nobody knows which one is.
    """
    rounds = list(zip(*(look.exchanges for look in looks), strict=True))
    wrong_sums = {rank for one in rounds for rank, got in enumerate(one) if not got.is_sum_right}
    ways = {
        (sender, receiver)
        for one in rounds
        for receiver, got in enumerate(one)
        for sender in got.wrong_senders
    }
    suspects = wrong_sums if 2 * len(wrong_sums) < len(looks) else set[int]()
    suspects |= {rank for rank, other in ways if rank == other} | _in_common(ways)
    open_ways = [way for way in ways if suspects.isdisjoint(way)]
    is_open = bool(open_ways) or bool(wrong_sums and not suspects)
    if is_open or 2 * len(suspects) > len(looks):
        return _Verdict(is_undecided=True)
    return _Verdict(faulty=frozenset(suspects))


def _in_common(ways: Collection[tuple[int, int]]) -> set[int]:
    """The sender or receiver of all ``ways``, if there are several and they have one in common."""
    ends = [{way[end] for way in ways} for end in (0, 1)]
    return set[int]().union(*(end for end in ends if len(end) == 1 and len(ways) > 1))


def _faulty(verdicts: Iterable[tuple[str, _Verdict]]) -> dict[int, tuple[str, ...]]:
    found: dict[int, list[str]] = {}
    for name, verdict in verdicts:
        for rank in sorted(verdict.faulty):
            found.setdefault(rank, []).append(name)
    return {rank: _names(names) for rank, names in sorted(found.items())}


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def described(finding: Finding, looks: Sequence[Look], *, step: int, clean_step: int | None) -> str:
    """Who is at fault, by rank and device, and since when."""
    since = "no check of this attempt was clean" if clean_step is None else f"clean after step {clean_step}"
    if not finding.faulty:
        what = " and ".join(finding.undecided)
        return (
            f"before step {step} the {len(looks)} ranks have other {what} for the same samples, and no "
            f"majority says which is at fault; {since}"
        )
    who = "; ".join(
        f"rank {rank} ({looks[rank].device}) {_otherwise(names)}" for rank, names in finding.faulty.items()
    )
    return f"before step {step}: {who}; {since}"


def _otherwise(names: Sequence[str]) -> str:
    """What arrived and what is held come before what is computed from them."""
    if LINK in names or SAMPLES in names:
        return "sends or gets other messages, samples or sums than were given: its link"
    if KEPT in names:
        return "holds weights or moments that changed although nothing updated them"
    if WEIGHTS in names:
        return "holds other weights or moments than the others"
    if PARAMETERS in names:
        return "works with other parameters than the others, as they were gathered or cast"
    return f"computes other {' and '.join(names)} than the others from the same samples"
