"""The settings that say how a training computes. They exchange memory for time. Needs no torch.

To add one, give it a field here, its words in ``reporting.results.settings``, a field in ``RunRecord`` and in
``Row``, a column, and a key in ``RunSpec``, ``Axes`` and ``Selection``.
"""

from dataclasses import dataclass
from typing import Literal

Checkpointing = Literal["none", "selective", "full"]
CrossEntropy = Literal["whole", "chunked"]
Compile = Literal["none", "block"]
Attention = Literal["auto", "flash", "efficient", "cudnn", "math"]
Fp8 = Literal["none", "tensorwise", "rowwise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """See the modules of ``models`` for each. Results differ by rounding alone."""

    activation_checkpointing: Checkpointing = "none"
    cross_entropy: CrossEntropy = "whole"
    compile: Compile = "none"
    attention: Attention = "auto"
    fp8: Fp8 = "none"
