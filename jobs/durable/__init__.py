"""A training loop of the user's own becomes durable: saves, resume, graceful stop, records.

See docs/own-loop.md. Reading order: ``run`` (what a script calls), ``opening`` (from its arguments to a
session), ``session`` (one attempt on one rank), ``telling`` (what that says of itself) with ``records``,
``lease`` (who may train the run), ``batches`` (which samples a step reads),
``hugging_face`` (transformers' Trainer as a run), ``errors``.
"""

from jobs.durable.batches import batches
from jobs.durable.errors import DurableError
from jobs.durable.run import Run, run

__all__ = ["DurableError", "Run", "batches", "run"]
