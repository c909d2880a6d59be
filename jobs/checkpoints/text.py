"""Formats checkpoints for people."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from checkpointing.generations.audit import AuditFinding
from checkpointing.generations.garbage import UPLOADS, Garbage
from checkpointing.generations.repository import Repository
from checkpointing.log.history import Generation
from checkpointing.stores.contract import StoreError
from jobs.checkpoints.details import Contents, GenerationDetails
from jobs.checkpoints.listing import CheckpointListing, ListingRow
from jobs.checkpoints.verification import ShareVerdict
from jobs.commandline.output import one_line
from jobs.commandline.text_table import TextColumn, as_text
from reporting.analysis.formatting import counted

_AGES = ((86400, "d"), (3600, "h"), (60, "min"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def inventory_text(inventory: CheckpointListing, *, now_s: float) -> str:
    """One line per generation, the newest last."""
    rows, found = inventory.rows, [row.generation for row in inventory.rows]
    columns = [
        _column("generation", (one.name for one in found)),
        _number("step", (str(one.step) for one in found)),
        _number("epoch", (str(one.epoch_end or "-") for one in found)),
        _number("age", (_age(now_s - one.committed_s) for one in found)),
        _number("size", (size_text(one.num_bytes) for one in found)),
        _column("where", (", ".join(row.places) for row in rows), may_fold=True),
        _column("life", (str(one.life) for one in found), may_fold=True),
        _column("state", map(_state, found)),
        _column("kept for", map(_reasons, rows)),
    ]
    called = {word: row.generation.name for row in rows for word in row.called}
    named = [f"{word} {called[word]}" for word in ("latest", "backup", "best") if word in called]
    total = f"{counted(len(rows), 'generation')}, {size_text(inventory.num_bytes)} in the store"
    table = as_text(columns) if rows else ""
    return table + "; ".join([total, *named])


def portrait_text(portrait: GenerationDetails) -> str:
    found = portrait.generation
    lines = [
        found.name,
        f"step {found.step}, attempt {found.term}, life {found.life}, committed {_time(found.committed_s)}, "
        f"{size_text(found.num_bytes)}, {_state(found)}",
    ]
    if found.epoch_end is not None:
        lines.append(f"ends epoch {found.epoch_end}")
    if found.metrics:
        lines.append(", ".join(f"{name} {value:g}" for name, value in sorted(found.metrics.items())))
    if found.quarantined is not None:
        lines.append(f"quarantined: {one_line(found.quarantined)}")
    lines += (
        _contents_lines(portrait.contents)
        if portrait.contents
        else [f"corrupt: {one_line(str(portrait.problem))}"]
    )
    lines.append(f"manifest sha256 {found.manifest_digest}")
    lines += [f"record {one.number}  {_time(one.written_s)}  {one_line(one.what)}" for one in portrait.events]
    return "\n".join(lines)


def verdict_text(verdict: ShareVerdict, *, is_quarantined: bool) -> str:
    found = verdict.generation
    known = "" if found.quarantined is None else f"; quarantined already: {one_line(found.quarantined)}"
    if verdict.problem is None:
        return f"{found.name}: ok, {counted(verdict.num_files, 'file')}, {size_text(found.num_bytes)}{known}"
    if not verdict.is_corrupt:
        return f"{found.name}: can't be read now: {one_line(verdict.problem)}"
    done = "; quarantined" if is_quarantined else "; a run that resumes quarantines it, --quarantine does now"
    return f"{found.name}: corrupt: {one_line(verdict.problem)}{known or done}"


def surplus_lines(repository: Repository) -> list[str]:
    """Lines on lost log records, and on whole generations that the newest start found outside the log."""
    surplus, run = repository.surplus, repository.run
    lines = []
    if surplus.num_gone:
        lines.append(f"{counted(surplus.num_gone, 'record')} of the log of {run} are gone, the newest ones")
    lines += [
        f"{one.name} is whole and its commit was not in the log; it was committed again"
        for one in surplus.adopted
    ]
    if surplus.kept:
        size = size_text(sum(one.num_bytes for one in surplus.kept))
        lines.append(
            f"{counted(len(surplus.kept), 'whole generation')} that the log does not name: kept, {size}; "
            f"longhaul checkpoints gc --run {run} --store {repository.store.url} names them"
        )
    return lines


def garbage_text(
    garbage: Garbage,
    *,
    is_done: bool,
    with_unnamed: bool = False,
    refused: Mapping[str, StoreError] | None = None,
) -> str:
    """``refused`` holds what was to be deleted and is still there."""
    refused = refused or {}
    lines = [
        f"{one.generation}: {counted(len(one.objects), 'object')}, {size_text(one.num_bytes)}, {one.why}"
        for one in garbage.remainders
    ]
    lines += [f"{one.name}: an upload begun {_time(one.started.timestamp())}" for one in garbage.uploads]
    lines += [
        f"{one.generation}: {counted(len(one.objects), 'object')}, {size_text(one.num_bytes)}, {one.why}"
        for one in garbage.unnamed
    ]
    lines += [f"{name}: could not be deleted: {error}" for name, error in refused.items()]
    lines.append(_sums_line(garbage, is_done, refused))
    return "\n".join([*lines, *_unnamed_lines(garbage, refused, is_gone=is_done and with_unnamed)])


def _sums_line(garbage: Garbage, is_done: bool, refused: Collection[str]) -> str:
    if not garbage.num_objects and not garbage.uploads:
        return "nothing is left over"
    meant = [one for one in garbage.remainders if one.generation not in refused]
    num_uploads = 0 if UPLOADS in refused else len(garbage.uploads)
    uploads = f" and {counted(num_uploads, 'upload')}" if num_uploads else ""
    num_objects, num_bytes = sum(len(one.objects) for one in meant), sum(one.num_bytes for one in meant)
    what = f"{counted(num_objects, 'object')} of {size_text(num_bytes)}{uploads}"
    return f"{what} deleted" if is_done else f"{what} would go; --yes deletes them"


def _unnamed_lines(garbage: Garbage, refused: Collection[str], *, is_gone: bool) -> Iterator[str]:
    meant = [one for one in garbage.unnamed if one.generation not in refused]
    if not meant:
        return
    many = counted(len(meant), "whole generation")
    what = f"{many} of {size_text(sum(one.num_bytes for one in meant))} that the log does not name"
    yield f"{what} deleted" if is_gone else f"{what} kept; --unnamed --yes deletes them, and they may be good"


def finding_text(finding: AuditFinding, *, is_mended: bool) -> str:
    kind = "mended" if is_mended else "wrong" if finding.is_wrong else "note"
    hint = "; --yes mends it" if finding.is_mendable and not is_mended else ""
    return f"{kind}: {finding.place} {finding.says}{hint}"


def size_text(num_bytes: int) -> str:
    for unit_bytes, unit in _SIZES:
        if num_bytes >= unit_bytes:
            return f"{num_bytes / unit_bytes:.1f} {unit}"
    return f"{num_bytes} B"


def _contents_lines(contents: Contents) -> Iterator[str]:
    yield (
        f"{contents.strategy} on {counted(contents.world_size, 'rank')}, "
        f"{counted(contents.num_tensors, 'tensor')}, {counted(contents.num_parameters, 'parameter')}"
    )
    # The spec is too long to print here; --json has it.
    state = {name: value for name, value in contents.state.items() if name != "spec"}
    if state:
        yield ", ".join(f"{name} {value}" for name, value in _flat(state))
    for file, num_bytes in contents.files.items():
        yield f"{file}  {num_bytes:,} bytes"


def _flat(state: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(state.items()):
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _state(found: Generation) -> str:
    state = "verified" if found.is_verified else "unverified"
    if found.quarantined is not None:
        state = "quarantined"
    return f"{state}, pinned" if found.is_pinned else state


def _reasons(row: ListingRow) -> str:
    if "store" not in row.places:
        return "the next start"
    return ", ".join(row.kept_for) or "nothing: goes with the next save"


def _age(seconds: float) -> str:
    for unit_s, unit in _AGES:
        if seconds >= unit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _column(title: str, texts: Iterable[str], *, may_fold: bool = False) -> TextColumn:
    return TextColumn(title=title, texts=tuple(texts), may_fold=may_fold)


def _number(title: str, texts: Sequence[str] | Iterable[str]) -> TextColumn:
    return TextColumn(title=title, texts=tuple(texts), is_number=True)
