"""The sections about a run's data, and about evaluation on held-out samples."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from jobs.spec_schema.file import Count, Every, Name, NodeFolder, Span, Strict
from jobs.training.data.mixture import whole_weights
from jobs.training.task.sample_order import Shuffle


class ShardCacheSettings(Strict):
    """Each node's own disk. With ``dir`` null, tokens in object storage are read from there directly."""

    dir: NodeFolder | None = None
    gib: Span = 50.0


class DataSource(Strict):
    """A source of a mixture. Its order depends on its name."""

    name: Name
    path: Annotated[str, Field(min_length=1)]
    weight: Span


class Data(Strict):
    """The training data. ``samples`` is the size of a synthetic epoch. Of kind ``tokens``, all are used.

    ``tokenizer`` must be the tokenizer that packed the tokens: its file, its digest, or its name. ``end_id``
    ends a document; null is what the index says. ``shuffle`` is the order of samples, within each source.
    """

    kind: Literal["synthetic", "tokens"] = "synthetic"
    samples: Count = 4096
    path: Annotated[str, Field(min_length=1)] | None = None
    sources: list[DataSource] = Field(default_factory=list)
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    attention: Literal["causal", "per_document"] = "causal"
    end_id: Annotated[int, Field(ge=0)] | None = None
    shuffle: Shuffle = "global"
    local: ShardCacheSettings = ShardCacheSettings()

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.kind == "tokens" and self.path is None and not self.sources:
            raise ValueError("tokens need a path, such as {kind: tokens, path: tokens/books}, or sources")
        if self.kind == "tokens" and "samples" in self.model_fields_set:
            raise ValueError("samples: of tokens all are used; leave it out, or use kind: synthetic")
        if self.kind == "synthetic" and (self.path or self.sources or self.tokenizer):
            raise ValueError("synthetic data has no path and no tokenizer; expected kind: tokens with them")
        if self.kind == "synthetic" and self.attention == "per_document":
            raise ValueError("attention: synthetic data has no documents; expected causal, or kind: tokens")
        if self.end_id is not None and self.attention == "causal":
            raise ValueError("end_id: is for attention: per_document; leave it out, or set that")
        return self

    @model_validator(mode="after")
    def _is_a_mixture(self) -> Self:
        if not self.sources:
            return self
        if self.path is not None:
            raise ValueError("path and sources exclude each other; give one")
        names = [source.name for source in self.sources]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"sources: {min(twice)} is there twice; give each a name of its own")
        try:
            whole_weights([source.weight for source in self.sources])
        except ValueError as error:
            raise ValueError(f"sources: {error}") from None
        return self


class EvaluationSettings(Strict):
    """Evaluates the loss on held-out samples every so many steps; 0 means never.

    With ``path`` the samples are the first of the tokens there, and nothing of the training data is held out.
    """

    every_steps: Every = 0
    samples: Count = 64
    path: Annotated[str, Field(min_length=1)] | None = None
