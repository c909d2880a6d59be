"""What a place of tokens holds, and what a run's spec makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass

from jobs.commandline.usage_error import SpecError
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.data.mixture import mixed_at, num_drawn, shares_of
from jobs.training.task.sample_order import newest_order, sample_at
from jobs.training.task.task import Mixture
from jobs.training.task.token_index import DTYPE_BYTES, TokenIndex
from reporting.recording.read_data import DocumentFacts

# The samples of more are neither read by anybody nor computed in a moment.
MOST_SAMPLES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """What the index says. ``num_with_sha256`` shards can be compared with it. ``row_tokens`` and
    ``num_trained_tokens`` are None if the tokens are no conversations: then all are trained on. Of text,
    ``begin_ids`` stand before each document, and ``end_id`` behind it; None if that is not known. ``split``
    is "training" or "held-out" if a share of the documents, ``held_out_share``, was held out when they were
    packed.

    ``documents`` is None if not all tokens were read; ``unread`` says why. ``excerpt`` is how the first
    document begins, as text with control characters escaped; None if the tokenizer is not at hand.
    """

    url: str
    num_tokens: int
    num_bytes: int
    num_shards: int
    num_with_sha256: int
    dtype: str
    tokenizer: str | None
    tokenizer_digest: str | None
    vocab_size: int | None
    begin_ids: list[int] | None
    end_id: int | None
    digest: str
    row_tokens: int | None
    num_trained_tokens: int | None
    split: str | None
    held_out_share: float | None
    documents: DocumentFacts | None = None
    unread: str | None = None
    excerpt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run of the spec reads. ``num_samples`` make an epoch; ``num_epochs`` may be a fraction. The
    ``num_held_out`` samples are the first at ``held_out_at``; null means the last of what is trained on.
    """

    kind: str
    seq_len: int
    num_samples: int
    num_held_out: int
    samples_per_step: int
    tokens_per_step: int
    num_steps: int
    steps_per_epoch: float
    num_epochs: float
    held_out_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The samples of one step, in the order of their positions, of which ``first_position`` is the first.

    ``first_epoch`` and ``last_epoch`` count from 1. Of a mixture, ``sources`` are the samples' sources, in
    which ``samples`` are numbered.
    """

    step: int
    first_position: int
    first_epoch: int
    last_epoch: int
    samples: list[int]
    sources: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """A source of a mixture; ``num_epochs``, which may be a fraction, is how often the run reads it."""

    name: str
    weight: int
    share: float
    num_samples: int
    num_epochs: float
    tokens: TokenFacts


def facts_of(index: TokenIndex, url: str) -> TokenFacts:
    vocabulary, chat, split = index.vocabulary, index.chat, index.split
    return TokenFacts(
        url=url,
        num_tokens=index.num_tokens,
        num_bytes=index.num_tokens * DTYPE_BYTES[index.dtype],
        num_shards=len(index.shards),
        num_with_sha256=sum(shard.is_named_by_its_bytes for shard in index.shards),
        dtype=index.dtype,
        tokenizer=vocabulary.tokenizer if vocabulary else None,
        tokenizer_digest=vocabulary.digest if vocabulary else None,
        vocab_size=vocabulary.size if vocabulary else None,
        begin_ids=None if vocabulary is None or vocabulary.begin_ids is None else [*vocabulary.begin_ids],
        end_id=vocabulary.end_id if vocabulary else None,
        digest=index.digest,
        row_tokens=chat.seq_len if chat else None,
        num_trained_tokens=chat.num_trained if chat else None,
        split=("held-out" if split.is_held_out else "training") if split else None,
        held_out_share=float(split.share) if split else None,
    )


def run_facts(spec: RunSpec, num_samples: int, held_out_at: str | None = None) -> RunFacts:
    num_steps = spec.num_steps(num_samples)
    recipe = spec.recipe(num_steps=num_steps)
    return RunFacts(
        kind=spec.data.kind,
        seq_len=spec.seq_len,
        num_samples=num_samples,
        num_held_out=spec.eval.samples,
        held_out_at=held_out_at,
        samples_per_step=recipe.sequences_per_step,
        tokens_per_step=recipe.tokens_per_step,
        num_steps=num_steps,
        steps_per_epoch=num_samples / recipe.sequences_per_step,
        num_epochs=num_steps * recipe.sequences_per_step / num_samples,
    )


def source_facts(mixture: Mixture, run: RunFacts, tokens: Sequence[TokenFacts]) -> list[SourceFacts]:
    """``tokens`` are the facts of each source."""
    weights = tuple(one.weight for one in mixture.sources)
    drawn = num_drawn(run.num_steps * run.samples_per_step, weights)
    return [
        SourceFacts(
            name=one.name,
            weight=one.weight,
            share=one.weight / sum(weights),
            num_samples=one.tokens.windows.num_samples,
            num_epochs=number / one.tokens.windows.num_samples,
            tokens=found,
        )
        for one, number, found in zip(mixture.sources, drawn, tokens, strict=True)
    ]


def step_facts(step: int, run: RunFacts, spec: RunSpec, mixture: Mixture | None = None) -> StepFacts:
    """Of a run that begins now, so that its order of samples is the newest, and that leaves none out."""
    if step > run.num_steps:
        raise SpecError([f"--step {step:,}: the run has {run.num_steps:,} steps; expected one of them"])
    if run.samples_per_step > MOST_SAMPLES:
        raise SpecError(
            [f"--step: a step has {run.samples_per_step:,} samples, expected at most {MOST_SAMPLES:,}"]
        )
    first, size = (step - 1) * run.samples_per_step, run.num_samples
    positions = range(first, first + run.samples_per_step)
    shares = shares_of(mixture) if mixture else []
    seed, order = spec.seed, newest_order(spec.data.shuffle)
    if shares:
        places = [mixed_at(position, shares, seed=seed, order=order) for position in positions]
    else:
        numbers = (sample_at(one, num_samples=size, seed=seed, order=order) for one in positions)
        places = [(0, number) for number in numbers]
    return StepFacts(
        step=step,
        first_position=first,
        first_epoch=first // size + 1,
        last_epoch=positions[-1] // size + 1,
        samples=[number for _, number in places],
        sources=[shares[source].name for source, _ in places] if shares else None,
    )
