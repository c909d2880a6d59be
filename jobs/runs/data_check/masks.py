"""Whether a mask keeps the documents or conversations of a row apart; a kernel that takes none is refused."""

from cluster.inventory import WorkerGroup
from jobs.commandline.usage_error import SpecError
from jobs.runs.data_check.find import Data, places_of
from jobs.spec_schema.run_spec import RunSpec


def are_in_parts(data: Data | None) -> bool:
    """Whether rows hold several documents or conversations that are kept apart."""
    return any(tokens.index.chat or tokens.end_id is not None for tokens in places_of(data))


def have_a_mask(spec: RunSpec, group: WorkerGroup, data: Data | None) -> bool:
    """Whether a mask keeps the documents or conversations of a row apart.

    On a device flash is told where they begin, and flex has a mask of blocks.
    """
    is_on_device = group.vendor != "cpu" and not group.simulated
    return are_in_parts(data) and not (spec.attention in ("flash", "flex") and is_on_device)


def check_kernel(spec: RunSpec, group: WorkerGroup, data: Data | None) -> None:
    """Raises ``SpecError`` if flash would need a mask, which it takes on no device but a CPU."""
    window = spec.model.config.sliding_window
    needs_one = window is not None and spec.seq_len > window and are_in_parts(data)
    if needs_one and spec.attention == "flash" and not have_a_mask(spec, group, data):
        raise SpecError(
            [
                f"attention: flash takes no mask on a device, but documents or conversations in rows of "
                f"{spec.seq_len:,} tokens need one with the model's window of {window:,}; expected auto, "
                "efficient, math or flex"
            ]
        )
