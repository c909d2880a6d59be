"""What is kept and why: never fewer than two good ones, and what goes never comes back."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from checkpointing.generations.retention import (
    LEAST_GOOD,
    Retention,
    backup,
    best,
    latest,
    may_go,
    of_this_life,
    reasons,
)
from checkpointing.log.history import (  # fmt: skip
    Commit,
    Entry,
    Fresh,
    Lease,
    LogView,
    Pin,
    Quarantine,
    Tombstone,
    Unpin,
    Verified,
    after,
)
from tests.unit.small_generations import generation, good, kept, names, view_of

NONE = Retention(last=0, epochs=False, best=0)

spans = st.none() | st.integers(1, 40)
policies = st.builds(
    Retention,
    last=st.integers(0, 4),
    epochs=st.booleans(),
    best=st.integers(0, 3),
    mode=st.sampled_from(["min", "max"]),
    every_s=spans,
    every_steps=spans,
    every_epochs=st.none() | st.integers(1, 3),
)
marks = st.sampled_from(["verify", "quarantine", "pin", "unpin", "nothing"])


@st.composite
def histories(draw: st.DrawFn) -> list[Entry]:
    """Commits in their order; what else happens comes in any."""
    entries: list[Entry] = [Lease(owner="a")]
    for number in range(1, draw(st.integers(1, 14)) + 1):
        loss, epoch_end = draw(st.none() | st.integers(0, 5)), draw(st.none() | st.integers(1, 6))
        found = generation(number, step=draw(st.integers(1, 30)), epoch_end=epoch_end)
        if loss is not None:
            found = replace(found, metrics={"val_loss": float(loss)})
        entries.append(Commit(generation=found))
        if draw(st.booleans()):
            entries.append(Verified(name=found.name))
        if draw(st.integers(0, 9)) == 0:
            entries.append(Fresh())
        committed = [entry.generation.name for entry in entries if isinstance(entry, Commit)]
        for _ in range(draw(st.integers(0, 2))):
            entries.append(_mark(draw(marks), draw(st.sampled_from(committed))))
    return entries


def _mark(mark: str, name: str) -> Entry:
    match mark:
        case "verify":
            return Verified(name=name)
        case "quarantine":
            return Quarantine(name=name, reason="damaged")
        case "pin":
            return Pin(name=name)
        case "unpin":
            return Unpin(name=name)
        case _:
            return Lease(owner="b")


def retired(view: LogView, policy: Retention) -> LogView:
    return after(view, Tombstone(names=may_go(view, policy)))


def num_good(view: LogView) -> int:
    return sum(found.is_good for found in view.generations)


@given(histories(), policies)
def test_never_fewer_than_two_good_ones_remain(entries: list[Entry], policy: Retention) -> None:
    view = view_of(*entries)
    assert num_good(retired(view, policy)) >= min(LEAST_GOOD, num_good(view))


@given(histories(), policies)
def test_of_a_new_life_too_never_fewer_than_two_good_ones_remain(
    entries: list[Entry], policy: Retention
) -> None:
    view = view_of(*entries)
    before = [found for found in of_this_life(view) if found.is_good]
    kept_of_life = [found for found in of_this_life(retired(view, policy)) if found.is_good]
    assert len(kept_of_life) >= min(LEAST_GOOD, len(before))


@given(histories(), policies)
def test_removing_what_may_go_changes_no_reason_of_the_others(
    entries: list[Entry], policy: Retention
) -> None:
    view = view_of(*entries)
    before = {name: rules for name, rules in reasons(view, policy).items() if rules}
    assert reasons(retired(view, policy), policy) == before


@given(histories(), policies)
def test_removing_only_some_of_it_changes_no_reason_of_the_others(
    entries: list[Entry], policy: Retention
) -> None:
    view = view_of(*entries)
    before = reasons(view, policy)
    some = after(view, Tombstone(names=may_go(view, policy)[::2]))
    assert reasons(some, policy) == {found.name: before[found.name] for found in some.generations}


@given(histories(), policies)
def test_a_pin_keeps_whatever_it_is(entries: list[Entry], policy: Retention) -> None:
    view = view_of(*entries)
    pinned = [found.name for found in view.generations if found.is_pinned]
    assert not set(pinned) & set(may_go(view, policy))


@given(histories(), policies)
def test_what_a_run_would_go_on_from_and_what_is_behind_it_never_go(
    entries: list[Entry], policy: Retention
) -> None:
    view = view_of(*entries)
    here = of_this_life(view)
    needed = [found.name for found in (latest(here), backup(here)) if found]
    assert not set(needed) & set(may_go(view, policy))


@given(histories(), policies)
def test_making_room_all_the_time_loses_nothing_that_the_rules_would_keep_by_commits_alone(
    entries: list[Entry], policy: Retention
) -> None:
    """If generations are only added and verified, in order, then pruning early or late is the same."""
    commits = [entry.generation for entry in entries if isinstance(entry, Commit)]
    early = late = LogView()
    for found in commits:
        for entry in (Commit(generation=found), Verified(name=found.name)):
            early, late = retired(after(early, entry), policy), after(late, entry)
    assert names(early.generations) == names(retired(late, policy).generations)


def test_the_newest_is_latest_and_the_good_one_before_it_is_backup() -> None:
    view = view_of(*good(1), *good(2), Commit(generation=generation(3)))
    newest, behind = latest(view.generations), backup(view.generations)
    assert newest is not None and behind is not None
    assert (newest.number, behind.number) == (3, 2)
    verified = view_of(*good(1), *good(2), *good(3))
    behind = backup(verified.generations)
    assert behind is not None
    assert behind.number == 2


def test_latest_and_backup_are_never_quarantined_ones() -> None:
    entries = [*good(1), *good(2), *good(3), *good(4)]
    spoilt = [Quarantine(name=generation(number).name, reason="bad") for number in (2, 4)]
    view = view_of(*entries, *spoilt)
    newest, behind = latest(view.generations), backup(view.generations)
    assert newest is not None and behind is not None
    assert (newest.number, behind.number) == (3, 1)


def test_the_last_ones_are_counted_among_the_good() -> None:
    view = view_of(*good(1), *good(2), Commit(generation=generation(3)), *good(4), *good(5))
    assert kept(view, reasons(view, replace(NONE, last=3))) == [2, 4, 5]


def test_what_is_not_verified_stays_while_nothing_good_is_newer() -> None:
    pending = [Commit(generation=generation(number)) for number in (3, 4)]
    view = view_of(*good(1), *good(2), *pending)
    assert kept(view, reasons(view, NONE)) == [1, 2, 3, 4]
    view = after(view, Verified(name=generation(4).name))
    assert kept(view, reasons(view, NONE)) == [2, 4]


def test_the_best_are_those_with_the_least_loss_or_the_greatest_score() -> None:
    losses = {1: 2.0, 2: 1.0, 3: 3.0, 4: 1.0}
    entries = [entry for number, loss in losses.items() for entry in good(number, metrics={"val_loss": loss})]
    view = view_of(*entries, *good(5), *good(6))
    assert [found.number for found in best(view.generations, Retention())] == [2, 4, 1, 3]
    assert kept(view, reasons(view, replace(NONE, best=1))) == [2, 5, 6]
    assert kept(view, reasons(view, replace(NONE, best=1, mode="max"))) == [3, 5, 6]
    assert kept(view, reasons(view, replace(NONE, best=2, metric="accuracy"))) == [5, 6]


def test_the_best_is_never_one_that_was_not_read_back() -> None:
    unread = Commit(generation=generation(2, metrics={"val_loss": 0.1}))
    view = view_of(*good(1, metrics={"val_loss": 1.0}), unread, *good(3), *good(4))
    assert kept(view, reasons(view, replace(NONE, best=1))) == [1, 3, 4]


def test_the_end_of_every_epoch_or_of_every_second_one_is_kept_for_ever() -> None:
    ends = [entry for number in range(1, 6) for entry in good(number, epoch_end=number)]
    view = view_of(*ends, *good(6), *good(7))
    assert kept(view, reasons(view, replace(NONE, epochs=True))) == [1, 2, 3, 4, 5, 6, 7]
    assert kept(view, reasons(view, replace(NONE, every_epochs=2))) == [2, 4, 6, 7]


def test_one_of_each_span_of_time_or_steps_is_kept() -> None:
    view = view_of(*(entry for number in range(1, 11) for entry in good(number)))
    assert kept(view, reasons(view, replace(NONE, every_s=3))) == [1, 4, 7, 9, 10]
    assert kept(view, reasons(view, replace(NONE, every_steps=40))) == [1, 5, 9, 10]


def test_a_clock_that_was_set_back_costs_no_span() -> None:
    """A day ahead, then right again: from there on spans are counted anew."""
    ahead, right = 86_400.0, 100.0
    times = [90.0, ahead, ahead + 10, right, right + 10, right + 60]
    entries = [
        entry for number, at_s in enumerate(times, start=1) for entry in good(number, committed_s=at_s)
    ]
    view = view_of(*entries, *good(7, committed_s=right + 70), *good(8, committed_s=right + 80))
    assert kept(view, reasons(view, replace(NONE, every_s=60))) == [1, 2, 4, 6, 7, 8]


def test_a_reason_says_which_rule_keeps_it() -> None:
    view = view_of(*good(1, epoch_end=1), *good(2), *good(3), Pin(name=generation(1).name))
    found = reasons(view, replace(NONE, last=1, epochs=True))
    assert [found[one.name] for one in view.generations] == [
        ("pin", "epoch"),
        ("backup",),
        ("latest", "last"),
    ]


def test_a_former_life_stays_until_the_new_one_has_enough_to_stand_on() -> None:
    pinned = Pin(name=generation(1).name)
    view = view_of(*good(1), *good(2), *good(3), pinned, Fresh(), *good(4))
    assert kept(view, reasons(view, NONE)) == [1, 2, 3, 4]
    view = view_of(*good(1), *good(2), *good(3), pinned, Fresh(), *good(4), *good(5))
    assert kept(view, reasons(view, NONE)) == [1, 4, 5]


def test_nothing_goes_where_nothing_was_ever_verified() -> None:
    view = view_of(*(Commit(generation=generation(number)) for number in range(1, 30)))
    assert may_go(view, NONE) == ()


def test_an_epoch_end_that_only_looked_poisonous_stays() -> None:
    """A bad node crashes whatever it loads: then nothing is wrong with the generation."""
    ends = [Commit(generation=generation(number, epoch_end=number)) for number in (1, 2)]
    checked = [Verified(name=generation(number).name) for number in (1, 2)]
    spoilt = [
        Quarantine(name=generation(1).name, reason="crashes", is_poison=True),
        Quarantine(name=generation(2).name, reason="a flipped bit"),
    ]
    view = view_of(*ends, *checked, *good(3), *good(4), *good(5), *spoilt)
    assert kept(view, reasons(view, replace(NONE, epochs=True))) == [1, 4, 5]
