"""What findings mean: those of the cluster, of the doctor, and the checks of a report. Pure."""

from collections.abc import Iterator

from jobs.explaining.entry import Entry, Texts, entries

NODES: Texts = {
    "missing_nodes": (
        "Nodes that the file promises are not there.",
        "Start them, unless an autoscaler does.",
    ),
    "fewer_devices": (
        "A node has fewer devices than promised: a dead device, or Ray was started with too few.",
        "Run `nvidia-smi` or `amd-smi` there.",
    ),
    "more_devices": ("A node has more devices than promised.", "Correct cluster.yaml."),
    "more_nodes": ("There are more nodes than promised.", "Correct cluster.yaml."),
    "unexpected_group": (
        "A node is in a group that the file does not name.",
        "Its label has a typing error, or the file lacks the group.",
    ),
    "other_vendor": ("A node's vendor is not the promised one.", "Its labels or the file are wrong."),
    "other_device": ("A node's device model is not the promised one.", "Its labels or the file are wrong."),
    "other_simulation": (
        "Devices are simulated where real ones are promised, or the other way round.",
        "The node's labels or the file are wrong.",
    ),
    "draining": "A node gives up its work, because somebody asked for it.",
    "drained": "A node has given up its work, because somebody asked for it.",
    "lost": (
        "A node has left without a word.",
        "Look at power, network and `journalctl -u longhaul-worker`. It comes back by itself where Ray is "
        "started in a loop.",
    ),
    "returned": (
        "A node that was lost is there again.",
        "Run `longhaul doctor` before anything is timed there.",
    ),
    "joined": ("A node is new in a group.", "Run `longhaul doctor` before anything is timed there."),
}
CHECKS: Texts = {
    "throughput plausible": (
        "The throughput is beside the device's peak.",
        "Over the peak is a wrong measurement.",
    ),
    "throughput and step time agree": (
        "The tokens of a step over its time are the throughput.",
        "If not, something is wrong with what wrote the result.",
    ),
    "step time consistent": ("The runs of a cell take about the same time.", "If not: neighbours, heat."),
    "scaling efficiency sane": (
        "More devices are faster, and not by more than their number.",
        "Look at the links.",
    ),
    "attention by a fast kernel": (
        "Attention did not hold the scores of all heads.",
        "Take bf16, or attention: flash, which refuses instead.",
    ),
    "stragglers": ("No rank is much slower than the others.", "Look at the slow rank's node."),
    "memory below the device's": (
        "The peak memory is below what the device has.",
        "If not, the figure is wrong.",
    ),
    "memory as predicted": (
        "The peak memory is near the forecast.",
        "If not, other programs were on the device.",
    ),
    "memory ordered as theory says": (
        "A strategy that shards more needs less.",
        "If not, look at what else holds memory.",
    ),
    "loss decreasing": ("The loss goes down.", "If not, look at the training itself: learning rate, data."),
    "loss equal across strategies": (
        "The same training has the same loss under each strategy.",
        "A fast cell with another loss is no fast cell.",
    ),
    "measured at the same time": (
        "Two groups were measured side by side or in turn.",
        "If one came after the other, what changed meanwhile counts as a difference. Measure both again.",
    ),
    "no trend inside the window": (
        "Steps get neither faster nor slower inside the measured window.",
        "If faster, take a longer measure.warmup; if slower, look for heat or other jobs.",
    ),
    "no drift over time": (
        "A group is neither faster nor slower at the end of a sweep.",
        "Look for heat, other jobs, or a warm-up that is too short.",
    ),
    "enough repeats": ("There are enough runs for a verdict.", "Raise repeats, and run the sweep again."),
    "measured by us on real devices": (
        "The rows are real.",
        "Simulated and imported rows don't compare vendors.",
    ),
    "clocks or power capped": ("No device was held back by heat or power.", "Look at heat and power caps."),
}
DOCTOR: Texts = {
    "versions differ": ("Nodes or the driver have other versions of libraries.", "Give all the same image."),
    "clock": (
        "A node's clock is off. A store refuses what is 15 minutes off.",
        "Run `timedatectl set-ntp true` there.",
    ),
    "all-reduce": (
        "Ranks of a group can't talk to each other.",
        "Look at the interfaces' names and at ports.",
    ),
    "product rate": (
        "A device computes products more slowly than others of its kind, or far below its peak.",
        "Look at power cap, heat and partition mode.",
    ),
    "/dev/shm": ("There is too little shared memory.", "Start the container with --ipc=host."),
}


def of_findings() -> Iterator[Entry]:
    yield from entries("finding of `longhaul cluster show`", NODES)
    yield from entries("check of a report", CHECKS)
    yield from entries("finding of `longhaul doctor`", DOCTOR)
