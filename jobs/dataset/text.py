"""Shows what data hold as a few lines."""

from collections.abc import Iterator, Sequence

from jobs.dataset.facts import RunFacts, SourceFacts, StepFacts, TokenFacts
from jobs.dataset.verifying import Verified
from jobs.runs.data_check.agreement import told_of_begin
from jobs.runs.data_read.documents import MOST_COMPARED
from reporting.analysis.formatting import counted
from reporting.recording.read_data import DocumentFacts

_MOST_SHOWN = 64
_MOST_PROBLEMS = 20
_DIGEST_CHARS = 12
_MOST_BARS = 8
_BAR_CHARS = 40
_SYNTHETIC = "synthetic samples, made from the seed"


def data_text(
    tokens: TokenFacts | None,
    sources: Sequence[SourceFacts] | None,
    run: RunFacts | None,
    step: StepFacts | None,
    verified: Verified | None,
) -> str:
    parts = [
        _sources(sources) if sources else _tokens(tokens) if tokens else iter([_SYNTHETIC]),
        _run(run) if run else iter(()),
        _step(step) if step else iter(()),
        _verified(verified) if verified else iter(()),
    ]
    return "\n".join(line for part in parts for line in part)


def _tokens(found: TokenFacts) -> Iterator[str]:
    size = f"{found.num_bytes:,} bytes of {found.dtype}"
    yield f"{found.url}: {found.num_tokens:,} tokens in {counted(found.num_shards, 'shard')}, {size}"
    if found.tokenizer is None:
        yield "tokenizer: not known"
    else:
        digest = (found.tokenizer_digest or "")[:_DIGEST_CHARS]
        yield f"tokenizer: {found.tokenizer} ({digest}), a vocabulary of {found.vocab_size:,}"
    if found.begin_ids is not None:
        yield f"before each document: {told_of_begin(found.begin_ids)}"
    if found.row_tokens:
        yield (
            f"conversations in rows of {found.row_tokens:,} tokens, of which {found.num_trained_tokens:,} "
            f"({(found.num_trained_tokens or 0) / max(1, found.num_tokens):.1%}) are trained on"
        )
    if found.held_out_share:
        side = {"training": "trained on", "held-out": "held out"}[found.split or ""]
        yield f"documents that are {side}: by their hash, {found.held_out_share * 100:g}% are held out"
    if found.excerpt is not None:
        yield f'the first document begins: "{found.excerpt}"'
    if found.documents:
        yield from _documents(found.documents, found)
    else:
        yield f"documents: not read; {found.unread}"
    yield f"digest: {found.digest}; {found.num_with_sha256:,} of {found.num_shards:,} shards have a SHA-256"


def _documents(found: DocumentFacts, tokens: TokenFacts) -> Iterator[str]:
    name = "conversation" if tokens.row_tokens else "document"
    yield (
        f"{counted(found.num_documents, name)} in the {found.num_tokens:,} tokens, all of which were read; "
        f"the longest has {found.longest:,}"
    )
    yield from _bars(found)
    behind = f" of the first {found.num_compared:,}" if found.num_compared == MOST_COMPARED else ""
    yield f"copies of an earlier {name}, by hash: {_part(found.num_copies, found.num_compared)}{behind}"
    padding = _part(found.num_padding_tokens, found.num_tokens)
    yield f"padding: {padding} of the tokens" if found.num_padding_tokens else "padding: none"
    if found.num_cut is not None:
        yield f"cut, so that no sample holds the whole document: {_part(found.num_cut, found.num_documents)}"


def _bars(found: DocumentFacts) -> Iterator[str]:
    """How many documents there are of each length, in a few lines."""
    bounds, counts = found.length_bounds, found.length_counts
    shortest = next((at for at, count in enumerate(counts) if count), 0)
    together = -(-(len(counts) - shortest) // _MOST_BARS)
    firsts = range(shortest, len(counts), together)
    sums = [sum(counts[first : first + together]) for first in firsts]
    most = max([*sums, 1])
    names = [_span(bounds[first], bounds[min(first + together, len(counts))] - 1) for first in firsts]
    for name, number in zip(names, sums, strict=True):
        bar = "#" * -(-number * _BAR_CHARS // most)
        yield f"  {name:>{max(map(len, names))}} tokens: {number:,} {bar}".rstrip()


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _part(number: int, total: int) -> str:
    return f"{number:,} ({number / max(1, total):.1%})"


def _sources(found: Sequence[SourceFacts]) -> Iterator[str]:
    for one in found:
        yield (
            f"{one.name}: {one.share:.1%} of the samples; it has {one.num_samples:,}, which the run reads "
            f"{one.num_epochs:,.2f} times"
        )
        yield from (f"  {line}" for line in _tokens(one.tokens))


def _run(found: RunFacts) -> Iterator[str]:
    held_out = f", {found.num_held_out:,} held out" if found.kind == "tokens" else ""
    if found.held_out_at:
        held_out = f"; evaluated on the first {found.num_held_out:,} of {found.held_out_at}"
    yield f"an epoch: {found.num_samples:,} samples of {found.seq_len:,} tokens{held_out}"
    yield (
        f"a step: {found.samples_per_step:,} samples, {found.tokens_per_step:,} tokens; "
        f"an epoch is {found.steps_per_epoch:,.1f} steps"
    )
    yield f"the run: {found.num_steps:,} steps, {found.num_epochs:,.2f} epochs"


def _step(found: StepFacts) -> Iterator[str]:
    names = [f"{source} " for source in found.sources] if found.sources else [""] * len(found.samples)
    places = [f"{name}{sample}" for name, sample in zip(names, found.samples, strict=True)]
    shown = ", ".join(places[:_MOST_SHOWN])
    more = f" and {len(found.samples) - _MOST_SHOWN:,} more" if len(found.samples) > _MOST_SHOWN else ""
    epochs = f"epoch {found.first_epoch:,}"
    epochs += f" and {found.last_epoch:,}" if found.last_epoch != found.first_epoch else ""
    yield f"step {found.step:,} begins after {found.first_position:,} samples, in {epochs}: {shown}{more}"


def _verified(found: Verified) -> Iterator[str]:
    yield from found.problems[:_MOST_PROBLEMS]
    if (num_more := len(found.problems) - _MOST_PROBLEMS) > 0:
        yield f"and {counted(num_more, 'more shard')}"
    unknown = f", {found.num_unknown:,} without a SHA-256 in the index" if found.num_unknown else ""
    wrong = f", {len(found.problems):,} wrong" if found.problems else ""
    yield f"read {found.num_bytes:,} bytes: {counted(found.num_right, 'shard')} right{wrong}{unknown}"
