"""What a doctor saw of made-up clusters: two vendors in health, and ways of being broken."""

from dataclasses import replace
from typing import Any

from checkpointing.stores.probing import StoreFacts
from checkpointing.stores.verbs import VerbAnswer
from cluster.probe.node_facts import CopyRate, DiskFacts, GemmRate, KernelDigest, LinkRate, NodeFacts, Shape
from jobs.doctor.examination import Asked, Examination, Forecast, Link, NodeAnswer, Promise, Skew

UP, DOWN = Shape(rows=8192, inner=4096, columns=14336), Shape(rows=8192, inner=14336, columns=4096)
OWN = {"python": "3.11.9", "ray": "2.60.0", "torch": None, "deepspeed": None}


def rates(tflops: float, *, num_devices: int = 2) -> tuple[GemmRate, ...]:
    """bf16 at both shapes and fp32 at a tenth; every device a little slower than the one before."""
    return tuple(
        GemmRate(
            device=device, dtype=dtype, shape=shape, flops_per_s=tflops * scale * (1 - 0.01 * device) * 1e12
        )
        for device in range(num_devices)
        for dtype, shape, scale in (("bf16", UP, 1.0), ("bf16", DOWN, 0.97), ("fp32", UP, 0.1))
    )


def kernels(*, num_devices: int = 2, **others: str) -> tuple[KernelDigest, ...]:
    """``others`` are digests of device 1 that differ."""
    usual = {"product": "a1", "attention": "b2"}
    return tuple(
        KernelDigest(device=device, kernel=f"bf16 {name}", digest=digest)
        for device in range(num_devices)
        for name, digest in {**usual, **(others if device == 1 else {})}.items()
    )


def nvidia(**changes: Any) -> NodeFacts:
    facts = NodeFacts(
        host="gpu-a",
        platform="cuda",
        device="NVIDIA H100 80GB HBM3",
        num_devices=2,
        driver="580.65.06",
        visible={},
        versions=OWN | {"torch": "2.13.0+cu130", "deepspeed": "0.19.8"},
        memory_bytes=512 * 2**30,
        shm_bytes=256 * 2**30,
        gemms=rates(790),
        copies=(CopyRate(device=0, bytes_per_s=54.5e9), CopyRate(device=1, bytes_per_s=54.1e9)),
        disk=DiskFacts(folder="/nvme", free_bytes=3 * 10**12, write_bytes_per_s=2.1e9, fsync_s=0.0008),
        telemetry="NVML",
        model="NVIDIA H100 80GB HBM3",
        kernels=kernels(),
    )
    return replace(facts, **changes)


def amd(**changes: Any) -> NodeFacts:
    facts = nvidia(
        host="gpu-b",
        platform="rocm",
        device="AMD Instinct MI300X",
        driver="6.12.12",
        versions=OWN | {"torch": "2.13.0+rocm7.0", "deepspeed": "0.19.8"},
        gemms=rates(660),
        telemetry="AMD SMI",
        model="AMD Instinct MI300X",
    )
    return replace(facts, **changes)


def asked(node_id: str, name: str, group: str, **changes: Any) -> Asked:
    vendor = changes.pop("vendor", group)
    return replace(
        Asked(node_id=node_id, name=name, group=group, vendor=vendor, promised_devices=2), **changes
    )


def answer(who: Asked, facts: NodeFacts | str, **changes: Any) -> NodeAnswer:
    is_there = isinstance(facts, NodeFacts)
    skew = Skew(offset_s=0.0021, uncertainty_s=0.0004) if is_there else None
    return replace(
        NodeAnswer(asked=who, facts=facts, skew=skew, sees_store=True if is_there else None), **changes
    )


def pair(node: str, peer: str, rate: float | str, backend: str = "nccl") -> Link:
    """Of the group ``nvidia``, with the rate in GB/s or why there is none."""
    if isinstance(rate, str):
        return Link(group="nvidia", node=node, peer=peer, backend=backend, rate=rate)
    return replace(link("nvidia", node, rate), peer=peer, backend=backend)


def link(group: str, node: str | None, gigabytes_per_s: float) -> Link:
    rate = LinkRate(
        num_ranks=2,
        backend="nccl",
        size_bytes=256 * 2**20,
        bus_bytes_per_s=gigabytes_per_s * 1e9,
        small_s=31e-6,
    )
    return Link(group=group, node=node, rate=rate)


A1, A2 = asked("aaaa1111", "gpu-1", "nvidia"), asked("aaaa2222", "gpu-2", "nvidia")
B1 = asked("bbbb1111", "gpu-9", "amd")

STORE = StoreFacts(
    url="s3://bucket/longhaul",
    winners=1,
    reads_what_it_wrote=True,
    large_is_whole=True,
    put_s=0.018,
    get_s=0.009,
    write_bytes_per_s=410e6,
    read_bytes_per_s=620e6,
    verbs=(VerbAnswer(verb="create", took_s=0.018), VerbAnswer(verb="delete", took_s=0.007)),
)
DENIED = VerbAnswer(verb="list uploads", took_s=0.004, refused="store: s3://bucket: 403 AccessDenied")
RUN = Forecast(
    run="llama-long",
    generation_bytes=96_363_134_976,
    num_kept=15,
    grows=None,
    local_folder="/nvme",
    local_bytes=3 * 96_363_134_976,
    save_every_s=600.0,
    refused=None,
)
HEALTHY = Examination(
    source="the Ray cluster at 10.0.0.1:6379",
    own_versions=OWN,
    answers=(
        answer(B1, amd()),
        answer(A1, nvidia()),
        answer(A2, nvidia(host="gpu-c", gemms=rates(785))),
    ),
    store=STORE,
    links=(link("amd", B1.name, 310), link("nvidia", A1.name, 360), link("nvidia", None, 42)),
    promises=(
        Promise(group="amd", num_nodes=1, devices_per_node=2),
        Promise(group="nvidia", num_nodes=2, devices_per_node=2),
    ),
    forecast=RUN,
    is_cluster=True,
)


def broken() -> Examination:
    """As much as can be wrong at once."""
    return replace(
        HEALTHY,
        answers=(
            answer(B1, "ActorDiedError: the node left", skew=None),
            answer(
                A1,
                nvidia(
                    num_devices=1, visible={"CUDA_VISIBLE_DEVICES": "0"}, telemetry=None, gemms=rates(200)
                ),
                skew=Skew(offset_s=-42.0, uncertainty_s=0.001),
            ),
            answer(
                replace(A2, in_use="8 CPU and 1 GPU"),
                nvidia(
                    host="gpu-c",
                    versions={
                        "python": "3.12.1",
                        "ray": "2.59.0",
                        "torch": "2.12.0+cu128",
                        "deepspeed": None,
                    },
                    shm_bytes=64 * 2**20,
                    disk=DiskFacts(
                        folder="/tmp", free_bytes=2 * 10**9, write_bytes_per_s=21e6, fsync_s=0.140
                    ),
                    problems=("matrix product: OutOfMemoryError: CUDA out of memory",),
                ),
                sees_store=False,
            ),
        ),
        store=replace(
            STORE,
            url="/srv/results",
            free_bytes=10**12,
            winners=2,
            left_behind=("probe/1/race",),
            verbs=(*STORE.verbs, DENIED),
        ),
        links=(Link(group="nvidia", node=None, rate="DistNetworkError: connection refused"),),
        promises=(
            Promise(group="amd", num_nodes=4, devices_per_node=2),
            Promise(group="nvidia", num_nodes=2, devices_per_node=8),
        ),
        forecast=replace(
            RUN,
            grows="every 3,600 s",
            refused="amd has 2 devices on 1 node, 16 were asked for",
            save_every_s=60.0,
        ),
    )
