"""What the statuses of a sweep's cells mean. Pure."""

from collections.abc import Iterator

from jobs.explaining.entry import Entry, Texts, entries

STATUSES: Texts = {
    "ok": "The cell was measured.",
    "oom": (
        "Memory ran out, or the forecast said that it would (phase: predicted). This is an answer.",
        "Take a smaller micro_batch, activation_checkpointing: full, another strategy, or more devices.",
    ),
    "unschedulable": (
        "The cell is impossible on that group, or there was no room for it in limits.schedule_timeout_s.",
        "Look at `longhaul cluster show`: are the nodes up, and is somebody else on them?",
    ),
    "timeout": (
        "The cell made progress, but did not end within limits.cell_timeout_s.",
        "Raise that limit, or measure fewer steps.",
    ),
    "hang": (
        "No step ended for limits.hang_timeout_s. The row names the rank that did not come.",
        "Look at the links first (`longhaul doctor`), then at that rank's node.",
    ),
    "crash": (
        "An exception or a signal ended it, or its node was lost. The row has its last lines.",
        "Read them. The same on every node is the software, on one node it is the node.",
    ),
    "invalid_loss": (
        "The loss is no finite number.",
        "Look at precision and learning rate. On one node only, look at its memory: ECC errors.",
    ),
    "device_mismatch": (
        "The ranks were not on distinct devices of the group's vendor.",
        "The image and the label disagree, or variables hide devices.",
    ),
}


def of_cells() -> Iterator[Entry]:
    yield from entries("status of a cell", STATUSES)
