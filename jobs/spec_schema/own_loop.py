"""What ``durable.run`` takes: the settings of a run whose training loop is the user's own."""

from typing import Any, ClassVar, Self

from pydantic import model_validator

from jobs.spec_schema.file import RUNS, SWEEPS, Every, Name, SpecFile, SpecKind
from jobs.spec_schema.run_checkpoints import Checkpoint


class OwnLoop(SpecFile):
    """``checkpoint`` has a run's keys. ``tokens_per_step`` counts over all ranks, 0 if unknown."""

    of: ClassVar[SpecKind] = RUNS
    other: ClassVar[SpecKind] = SWEEPS
    example: ClassVar[str] = "checkpoint.every_steps=100"

    name: Name
    checkpoint: Checkpoint = Checkpoint()
    tokens_per_step: Every = 0

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.checkpoint.copy == "lazy":
            raise ValueError(
                "checkpoint.copy: lazy is for longhaul train, which knows what changes the state and when; "
                "leave it out"
            )
        return self

    @classmethod
    def of_arguments(cls, **arguments: Any) -> Self:
        return cls.of_data(arguments, "durable.run")

    def described(self) -> dict[str, Any]:
        """The spec as it is stored with the run."""
        return {"own_loop": True, **self.model_dump(mode="json")}
