"""What is said of a training: its stages, incidents, alarms, causes of failed attempts, phases. Pure."""

from collections.abc import Iterator

from jobs.explaining.entry import Entry, Texts, entries
from reporting.long_runs.ledger import PHASES

STAGES: Texts = {
    "starting": "An attempt has its lease, or waits for it. Its workers start and load what was saved.",
    "training": "The attempt has done a step.",
    "waiting": "An attempt failed. The next one begins by itself after a pause.",
    "silent": (
        "Its driver told nothing new while the command listened: it died, or does not reach the store.",
        "Start it again; with --keep this happens by itself.",
    ),
    "stopped": ("The run saved and ended as it was asked to.", "The same command goes on."),
    "finished": "All steps are done.",
    "given up": (
        "The driver saw no sense in another attempt; the reason is beside it.",
        "Mend what it names, then start the same command again: it begins anew with the attempts.",
    ),
    "failed": ("The driver ended with an error.", "Mend it, then start the same command again: it goes on."),
    "interrupted": (
        "A second Ctrl-C or signal ended it before its last save.",
        "The same command goes on from the newest checkpoint.",
    ),
    "not finished": "No driver has told how the run is doing; the log says that it is not at its end.",
}
INCIDENTS: Texts = {
    "start": "An attempt began. That is as it should be.",
    "restore": "An attempt loaded a checkpoint. That is as it should be.",
    "replay": "A step was done again after a restore, and its loss agrees with the one recorded before.",
    "save": "A checkpoint was saved. That is as it should be.",
    "end": "An attempt ended. That is as it should be.",
    "skipped save": (
        "The place was still busy with the save before.",
        "If it is often: the store is too slow for checkpoint.every_s.",
    ),
    "failed save": ("A save was given up; the training went on.", "Several in a row: look at the store."),
    "failure": "The attempt ended with an error; the next one goes on from the newest checkpoint.",
    "interruption": (
        "The driver was interrupted, or its process was told to end at once. Or the attempt moved on for a "
        "drain, a preemption or another size, and nothing is wrong."
    ),
    "stop": "The run saved and ended before its last step, as it was asked to.",
    "restart": "The driver starts the next attempt by itself, after the seconds that it names.",
    "give up": "The driver sees no sense in another attempt; the text says why.",
    "alarm": "Something is not as it should be; `longhaul explain` knows each alarm by its name.",
    "warning": "The text says it.",
    "dropped records": (
        "The store was away for longer than the buffer of records holds. The training was not touched."
    ),
}
ALARMS: Texts = {
    "loss not finite": (
        "The loss of all ranks is no finite number, or an attempt ended because one was none.",
        "Look at learning rate, precision and data. On one node only, look at its memory.",
    ),
    "loss spike": (
        "The loss was far above its usual value, twice in a row.",
        "Look at the data and the learning rate. guard.spike_ratio decides what is done about it.",
    ),
    "throughput drop": (
        "The run got clearly slower than in the ten minutes before.",
        "Look for a slow store of samples, heat, a neighbour on the node, long evaluations.",
    ),
    "straggler": (
        "One rank is slower than the others at the same small product or copy. All ranks wait for it.",
        "On its node, look for heat, a power cap or a busy host; if it is the copy, at its memory and PCIe.",
    ),
    "slow link": (
        "One host uploads its share of a save far more slowly than others do, and saves wait for it.",
        "Look at its network card, cable and switch, and at who else uses its link to the store.",
    ),
    "slow network": (
        "One host sends to others, or takes from them, far more slowly than they do. All ranks wait for it.",
        "Look at its network card, cable and switch port. `longhaul doctor` measures each pair of nodes.",
    ),
    "stale checkpoint": (
        "Nothing new has become durable for too long: a crash now would cost all steps since then.",
        "Look at the store: it is away, full, or too slow for the cadence. Or attempts fail too soon.",
    ),
    "low utilization": (
        "A device was busy for too little of a minute.",
        "The ranks wait for data, the batch is too small, or one rank holds up all.",
    ),
    "waiting for data": (
        "The training had no samples yet for too much of a minute, so devices stood still.",
        "Look at the store of the tokens and the link to it, or keep them near by data.local.dir.",
    ),
    "silent corruption": (
        "A rank computed something else than the others, and its attempt ended.",
        "Test the device and the host that the text names before they train again.",
    ),
    "given up": (
        "The driver sees no sense in another attempt, or the supervisor none in another driver.",
        "The text says why.",
    ),
}
CAUSES: Texts = {
    "worker died": (
        "A worker process ended without an error of its own, as by SIGKILL. The run goes on by itself.",
        "If it happens again and again on one node, look at that node.",
    ),
    "host lost": (
        "A node has left the cluster. The run goes on elsewhere, or waits for it.",
        "Look at the node.",
    ),
    "host silent": (
        "A node does not answer, though it may still be there. The run goes on elsewhere, or waits for it.",
        "Look at the node's network.",
    ),
    "driver died": (
        "The driver ended without a word of it.",
        "Start it again; with --keep this happens by itself.",
    ),
    "hang": (
        "No step ended for limits.hang_timeout_s, so the attempt was ended.",
        "Look at the links first (`longhaul doctor`), then at the rank that is named.",
    ),
    "partition": (
        "Nodes of the attempt did not reach each other. The run goes on without one of them.",
        "Look at the link between those that are named, at firewalls and switches (`longhaul doctor`).",
    ),
    "out of memory": (
        "A device or a host had no memory left.",
        "Take a smaller micro_batch, activation_checkpointing: full, or more devices.",
    ),
    "device failed": (
        "A device told of a fault of its own, such as an uncorrectable ECC error or an illegal access.",
        "Look at that node: `nvidia-smi -q`, `dmesg`, or `amd-smi`. An illegal access at the same step on "
        "another node is a faulty kernel of the program, and ends the run.",
    ),
    "error": (
        "An exception or a fault of the program ended it.",
        "Read its last lines, in the log and the report.",
    ),
    "invalid loss": (
        "A loss or a gradient was no finite number, or far above the usual.",
        "Look at learning rate, precision and data. The run rolls back and leaves these samples out.",
    ),
    "corruption": (
        "A rank computed something else than the others from the same samples, or held other weights.",
        "Test the device and the host that are named, before they train again. The run goes on without that "
        "node, from its last checkpoint before the last check at which all ranks agreed.",
    ),
    "hand-over": (
        "A group of nodes does not compute the losses that another group left with the checkpoint.",
        "Compare drivers and libraries of both. The run stays out of that group until it is started by hand.",
    ),
    "store": (
        "The store was away when the attempt needed it.",
        "Look at the store; the run tries again by itself.",
    ),
    "no room": ("No node had room for the attempt.", "Look at `longhaul cluster show`."),
    "cluster away": (
        "The Ray cluster did not answer.",
        "Look at its head; the supervisor tries again by itself.",
    ),
    "preempted": "A node announced its end, and the attempt saved before it. The run goes on elsewhere.",
    "refused": (
        "The attempt can't work as it was asked to, for example because the weights belong to another model.",
        "The text says what to change.",
    ),
}

TIMES: Texts = {
    "goodput": (
        "The time of steps that counted, over the whole time of the run.",
        "The phases beside it say where the rest went.",
    ),
    **{phase: f"{text[0].upper()}{text[1:]}." for phase, text in PHASES.items()},
}


def of_trainings() -> Iterator[Entry]:
    yield from entries("stage of a training", STAGES)
    yield from entries("incident of a training", INCIDENTS)
    yield from entries("alarm", ALARMS)
    yield from entries("cause of a failed attempt", CAUSES)
    yield from entries("share of a training's time", TIMES)
