"""A run's data, and how often it is evaluated on what is held out of them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from jobs.spec_schema.file import Count, Every, NodeFolder, Span, Strict


class ShardCacheSettings(Strict):
    """Each node's own disk. ``dir`` null: tokens in object storage are read where they lie."""

    dir: NodeFolder | None = None
    gib: Span = 50.0


class Data(Strict):
    """``samples`` make an epoch of synthetic data; ``tokens`` at ``path`` are as many as they are.

    ``tokenizer`` is what they must have been packed with: its file, its digest, or its name.
    """

    kind: Literal["synthetic", "tokens"] = "synthetic"
    samples: Count = 4096
    path: Annotated[str, Field(min_length=1)] | None = None
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    local: ShardCacheSettings = ShardCacheSettings()

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if self.kind == "tokens" and self.path is None:
            raise ValueError("tokens need a path, such as {kind: tokens, path: tokens/books}")
        if self.kind == "tokens" and "samples" in self.model_fields_set:
            raise ValueError("samples: of tokens all are used; leave it out, or use kind: synthetic")
        if self.kind == "synthetic" and (self.path or self.tokenizer):
            raise ValueError("synthetic data has no path and no tokenizer; expected kind: tokens with them")
        return self


class EvaluationSettings(Strict):
    """Every so many steps the loss on held-out samples; 0 is never."""

    every_steps: Every = 0
    samples: Count = 64
