"""Checks the store's guarantees, and whether a run has the space it will take. Pure."""

from collections.abc import Iterator

from checkpointing.stores.probing import StoreFacts
from cluster.probe.node_facts import DiskFacts, NodeFacts
from jobs.doctor.examination import Examination, Finding, Forecast

_SLOWEST_PUT_S = 2.0
_NEARLY_FULL = 0.80

# Without these nothing is lost, but the store fills up.
_FOR_ROOM_ALONE = {"delete", "delete what is gone", "list uploads"}
_RIGHTS = (
    "give these credentials the right to read, write, list and delete below the store's prefix, "
    "or choose another with --store"
)


def store(seen: Examination) -> Iterator[Finding]:
    facts = seen.store
    found = [*_contract(facts), *_refused_verbs(facts), *_unseen(seen), *_slow(facts)]
    yield from found or [Finding(level="ok", subject=_of(facts), found="holds what it is given")]


def forecast(seen: Examination) -> Iterator[Finding]:
    run = seen.forecast
    if run is None:
        return
    found = [*_refused(run), *_in_store(run, seen.store), *_on_disks(run, seen), *_pace(run, seen.store)]
    yield from found or [
        Finding(level="ok", subject=f"run {run.run}", found="has the space that it will take")
    ]


def _contract(facts: StoreFacts) -> Iterator[Finding]:
    if facts.failed:
        yield Finding(
            level="failed",
            subject=_of(facts),
            found=facts.failed,
            remedy=_RIGHTS if facts.denied else "mend it, or choose another with --store",
        )
        return
    if facts.winners != 1:
        yield Finding(
            level="failed",
            subject=_of(facts),
            found=f"{facts.winners} writers created one name at once, not 1: two attempts could own a run",
            remedy="use a store with conditional writes: S3, Azure, Google, a file system with hard links",
        )
    if not facts.reads_what_it_wrote or not facts.large_is_whole:
        what = "a large object" if facts.reads_what_it_wrote else "an object"
        yield Finding(
            level="failed",
            subject=_of(facts),
            found=f"{what} was not read back, listed and deleted as it was written",
            remedy="take caches and mirrors out of the way; choose another with --store",
        )
    if facts.left_behind:
        yield Finding(
            level="warning",
            subject=_of(facts),
            found=f"{len(facts.left_behind)} objects of this trial could not be deleted, such as "
            f"{facts.left_behind[0]}",
            remedy="allow deleting: retention needs it, or the store fills up",
        )


def _refused_verbs(facts: StoreFacts) -> Iterator[Finding]:
    """One finding for those that were refused alike. Where all were, the trial has said so already."""
    refused = [answer for answer in facts.verbs if answer.refused]
    if len(refused) == len(facts.verbs):
        return
    for says in dict.fromkeys(answer.refused for answer in refused):
        verbs = [answer.verb for answer in refused if answer.refused == says]
        yield Finding(
            level="warning" if {*verbs} <= _FOR_ROOM_ALONE else "failed",
            subject=_of(facts),
            found=f"refused: {'; '.join(verbs)}: {says}",
            remedy=_RIGHTS,
        )


def _unseen(seen: Examination) -> Iterator[Finding]:
    blind = [answer.asked.name for answer in seen.answers if answer.sees_store is False]
    if blind:
        yield Finding(
            level="failed",
            subject=_of(seen.store),
            found=f"not the same one on {', '.join(blind[:5])}{' and more' if len(blind) > 5 else ''}",
            remedy="use a directory that all nodes share, or s3://, az:// or gs://, with credentials on all",
        )


def _slow(facts: StoreFacts) -> Iterator[Finding]:
    if facts.put_s is not None and facts.put_s > _SLOWEST_PUT_S:
        yield Finding(
            level="warning",
            subject=_of(facts),
            found=f"{facts.put_s:.1f} s for a small object",
            remedy="use a store in the nodes' region; every checkpoint is several objects",
        )


def _refused(run: Forecast) -> Iterator[Finding]:
    if run.refused:
        yield Finding(
            level="failed",
            subject=f"run {run.run}",
            found=run.refused,
            remedy="change world_size or group, or add nodes",
        )


def _in_store(run: Forecast, facts: StoreFacts) -> Iterator[Finding]:
    if facts.free_bytes is None:
        return
    yield from _space(
        run.run,
        facts.url,
        run.store_bytes,
        facts.free_bytes,
        remedy="lower checkpoint.retention, or give the store more room",
    )
    if run.grows:
        yield Finding(
            level="warning",
            subject=f"run {run.run}",
            found=f"the store also grows by {run.generation_bytes / 1e9:.2f} GB {run.grows}",
            remedy="keep fewer for ever (checkpoint.retention), or watch the space",
        )


def _on_disks(run: Forecast, seen: Examination) -> Iterator[Finding]:
    """Checks the disk with the least free space, which stands for all disks."""
    if run.local_bytes is None:
        return
    if run.local_max_bytes is not None and run.local_bytes > run.local_max_bytes:
        yield Finding(
            level="warning",
            subject=f"run {run.run}",
            found=f"needs {run.local_bytes / 1e9:,.2f} GB in {run.local_folder}, of "
            f"{run.local_max_bytes / 1e9:,.2f} GB allowed",
            remedy="raise checkpoint.local.max_bytes, or fewer saves stay than checkpoint.local.keep",
        )
    disks = [answer.facts.disk for answer in seen.answers if isinstance(answer.facts, NodeFacts)]
    tightest: DiskFacts | None = min(filter(None, disks), key=lambda disk: disk.free_bytes, default=None)
    if tightest:
        yield from _space(
            run.run,
            tightest.folder,
            min(run.local_bytes, run.local_max_bytes or run.local_bytes),
            tightest.free_bytes,
            remedy="lower checkpoint.local.keep, or choose another checkpoint.local.dir",
        )


def _space(run: str, place: str, needed: int, free: int, *, remedy: str) -> Iterator[Finding]:
    if needed > _NEARLY_FULL * free:
        yield Finding(
            level="failed" if needed > free else "warning",
            subject=f"run {run}",
            found=f"needs {needed / 1e9:,.2f} GB in {place}, of {free / 1e9:,.2f} GB free",
            remedy=remedy,
        )


def _pace(run: Forecast, facts: StoreFacts) -> Iterator[Finding]:
    """Warns if one writer is slower than the save interval. Several nodes together may be faster."""
    if not facts.write_bytes_per_s or not run.save_every_s:
        return
    takes_s = run.generation_bytes / facts.write_bytes_per_s
    if takes_s > run.save_every_s:
        yield Finding(
            level="warning",
            subject=f"run {run.run}",
            found=f"one writer takes {takes_s:,.0f} s for a checkpoint, due every {run.save_every_s:,.0f} s",
            remedy="save less often (checkpoint.every_s, store.every), with checkpoint.local.dir in between",
        )


def _of(facts: StoreFacts) -> str:
    return f"store {facts.url}"
