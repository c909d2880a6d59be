"""The settings that say how a training computes. They exchange memory for time. Needs no torch.

To add one, give it a field here, its words or its number's text in ``reporting.results.settings``, a field in
``RunRecord`` and in ``Row``, a column, and a key in ``RunSpec``, ``Axes`` and ``Selection``.
``deterministic`` is no axis: it is for whole processes, so all cells of a sweep have it or none.
"""

from dataclasses import dataclass
from typing import Literal

Checkpointing = Literal["none", "selective", "full"]
CrossEntropy = Literal["whole", "chunked"]
Compile = Literal["none", "block"]
Attention = Literal["auto", "flash", "efficient", "cudnn", "math", "flex"]
Fp8 = Literal["none", "tensorwise", "rowwise"]
Offload = Literal["none", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See the modules of ``models`` and ``strategies`` for each. Results differ by rounding alone.

    ``shard_within`` is how many neighbouring ranks share one copy of the training state; None is all ranks.
    """

    activation_checkpointing: Checkpointing = "none"
    cross_entropy: CrossEntropy = "whole"
    compile: Compile = "none"
    attention: Attention = "auto"
    fp8: Fp8 = "none"
    shard_within: int | None = None
    offload: Offload = "none"
    deterministic: bool = False
