"""Decides from what ranks computed of the same micro-batch which of them is at fault. Pure.

Who differs from more than half of those that should agree with it is at fault. Where no such majority exists,
as of two, nobody knows which one is.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

WEIGHTS, SAMPLES = "weights", "samples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one rank has to compare, as digests.

    * ``device`` names it for people, ``node`` is where it is.
    * ``kind`` is what it computes on: other kinds may round otherwise.
    * ``samples`` is the micro-batch as it arrived.
    * ``held`` are its parameters and moments, by what they are: who holds the same should hold it alike.
    * ``computed`` has for each quantity, such as ``loss``, what each computation gave.
    """

    device: str
    node: str
    kind: str
    samples: str
    held: Mapping[str, str]
    computed: Mapping[str, tuple[str, ...]]


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
    verdicts = [(name, _verdict(group, repeats=repeats)) for name, group in groups]
    return Finding(
        faulty=_faulty(verdicts),
        undecided=_names(name for name, one in verdicts if one.is_undecided),
        varying=_names(name for name, one in verdicts if one.is_varying),
    )


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
    """Samples and weights come before what is computed from them."""
    if SAMPLES in names:
        return "receives other samples than were sent to all"
    if WEIGHTS in names:
        return "holds other weights or moments than the others"
    return f"computes other {' and '.join(names)} than the others from the same samples"
