"""What runs in each process of a worker group: it meets its peers, then does its jobs or its attempt.

Nothing here imports torch before a worker's environment is complete, because torch reads device lists and
thread counts when it loads. The driver and Train's controller import this module too, and never need torch.
"""

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any, Literal

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig

from checkpointing.errors import Fenced, NothingToResume, Unfit
from checkpointing.ray_hooks import point_at
from checkpointing.stores.contract import StoreError
from cluster.environment import visible_devices
from cluster.inventory import DOMAIN_LABEL, Vendor
from cluster.probe.meeting import folder_of, join, meet_at, meet_in, on_the_way_to
from cluster.probe.roll_call import Unmet
from cluster.run_key import new_key
from jobs.execution.board import (
    Departed,
    Done,
    Leaving,
    Left,
    Measured,
    Post,
    Raised,
    Ready,
    Searching,
)
from jobs.execution.messages import Started
from jobs.launch.ray_train.heartbeat import watching
from jobs.launch.ray_train.last_states import offering
from jobs.launch.ray_train.stop_listener import hearing
from jobs.training.health.postmortem import dump_stacks_on_request, log_tail, oom_kills
from jobs.training.task.context import Context
from jobs.training.task.job import Job
from jobs.training.task.measurement import Failure, Measurement
from jobs.training.task.search.largest_batch import BatchSearch
from jobs.training.task.stop_request import StopRequest
from jobs.training.task.task import Task

if TYPE_CHECKING:
    import torch

    from jobs.training.loop.last_state import LastState


_POST_TIMEOUT_S = 60.0
# A rank that is at an update when a peer is gone is whole again soon.
_SOON_WHOLE_S = 2.0
# The variable with the meeting point of the ranks, for ``train`` in the same process: no secret.
_MEETING = "LONGHAUL_MEETING"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What every rank of one worker group is told. ``board`` takes the group's posts under the name
    ``group``.

    ``work`` is the jobs to measure, or the attempt of a long run. ``collective_timeout_s`` only backs up the
    driver's own deadlines. ``key`` is new for each group and known to its ranks alone. The key reaches them
    through Ray, which asks for the cluster's token. It is in no variable, no command line and no log.
    """

    group: str
    board: Any
    work: tuple[Job, ...] | Task
    vendor: Vendor
    backend: Literal["gloo", "nccl"]
    collective_timeout_s: float
    key: bytes = field(default_factory=new_key, repr=False)


def train(told: dict[str, Assignment]) -> None:
    """Does the work of one rank. Ends with the first job that fails: the peers may then be stuck in a
    collective.
    """
    assignment = told["assignment"]
    try:
        context = _meet(assignment)
    except Unmet as error:
        _post(assignment, _unmet(assignment, error))
        raise
    _post(assignment, _ready(context))
    with watching(context, lambda beat: _tell(assignment, beat)):
        if isinstance(assignment.work, Task):
            _attempt(assignment.work, context, assignment)
            return
        for job in assignment.work:
            _run(job, context, assignment)


def _attempt(task: Task, context: Context, assignment: Assignment) -> None:
    from jobs.training.health.failures import failure_of
    from jobs.training.loop.attempt import Services, run

    states: list[LastState] = []
    tell = partial(_tell, assignment)

    def leave() -> None:
        if states:
            states[0].leave(within_s=_SOON_WHOLE_S)
        tell(Left(rank=context.rank))

    try:
        with offering(leave), _heard_stop_request(assignment, context.rank) as stop_request:
            services = Services(
                report=tell,
                report_checkpoint=point_at,
                stop_request=stop_request,
                offer_last_state=states.append,
                will_leave=lambda seconds: tell(Leaving(rank=context.rank, seconds=seconds)),
            )
            run(task, context, services)
    except BaseException as error:
        traceback.print_exc()
        failure = replace(failure_of(error, context.status.phase, context.rank), step=context.status.step)
        if not isinstance(error, NothingToResume | Unfit | Fenced | StoreError):
            failure = replace(failure, log_tail=_own_log_tail())
        _post(assignment, Raised(run_id=task.run, rank=context.rank, failure=failure))
        raise
    # Posts that were not waited for arrive before this one.
    _post(assignment, Departed(rank=context.rank))


def _heard_stop_request(
    assignment: Assignment, rank: int
) -> AbstractContextManager[Callable[[], StopRequest | None]]:
    """Listens for stop requests on rank 0 only: that is enough, since the ranks agree at each step."""
    if rank != 0:
        return nullcontext(_no_stop_request)
    board, group = assignment.board, assignment.group
    return hearing(lambda: ray.get(board.stop_request.remote(group), timeout=_POST_TIMEOUT_S))


def _no_stop_request() -> None:
    return None


def _run(job: Job, context: Context, assignment: Assignment) -> None:
    # Before libraries are loaded, which may take longer than ranks may only talk to each other.
    context.status.run_id, context.status.phase, context.status.step = job.run_id, "cooldown", 0
    from jobs.training.benchmark.largest import measure_job
    from jobs.training.health.failures import failure_of

    if context.rank == 0:
        _tell(assignment, Started(run_id=job.run_id))

    def tell(search: BatchSearch) -> None:
        if context.rank == 0:
            _post(assignment, Searching(run_id=job.run_id, search=search))

    try:
        measurement = measure_job(job, context, tell, partial(_keep, assignment, context.rank))
    except BaseException as error:
        traceback.print_exc()
        failure = replace(failure_of(error, context.status.phase, context.rank), log_tail=_own_log_tail())
        _post(assignment, Raised(run_id=job.run_id, rank=context.rank, failure=failure))
        raise
    if measurement is not None:
        _post(assignment, Done(measurement=measurement))


def _keep(assignment: Assignment, rank: int, measurement: Measurement) -> None:
    if rank == 0:
        _post(assignment, Measured(measurement=measurement))


def _post(assignment: Assignment, post: Post) -> None:
    """Returns when the board has the post: this process may end right after."""
    ray.get(assignment.board.post.remote(assignment.group, post), timeout=_POST_TIMEOUT_S)


def _tell(assignment: Assignment, post: Post) -> None:
    """Posts without waiting. The posts of one process arrive in order."""
    assignment.board.post.remote(assignment.group, post)


def _meet(assignment: Assignment) -> Context:
    """Joins the default process group and never leaves it: the process ends with the group."""
    os.environ.update(visible_devices(assignment.vendor, os.environ))
    place = ray.train.get_context()
    device = _device(assignment.backend)
    meeting = os.environ[_MEETING]
    os.environ.update(on_the_way_to(meeting))
    join(
        meeting,
        assignment.backend,
        rank=place.get_world_rank(),
        world_size=place.get_world_size(),
        key=assignment.key,
        timeout_s=assignment.collective_timeout_s,
        device=None if device.type == "cpu" else device,
        tell_late=lambda error: _tell(assignment, _unmet(assignment, error)),
    )
    return Context(
        rank=place.get_world_rank(),
        world_size=place.get_world_size(),
        local_rank=place.get_local_rank(),
        node=ray.get_runtime_context().get_node_id(),
        domain=ray.get_runtime_context().get_node_labels().get(DOMAIN_LABEL, ""),
        device=device,
        key=assignment.key,
    )


def _unmet(assignment: Assignment, error: Unmet) -> Raised:
    work = assignment.work
    return Raised(
        run_id=work.run if isinstance(work, Task) else work[0].run_id,
        rank=ray.train.get_context().get_world_rank(),
        failure=Failure(status="hang", reason=str(error), phase="setup", ranks=error.ranks),
    )


def _device(backend: Literal["gloo", "nccl"]) -> "torch.device":
    """This worker's own device. Ray Train's answer is wrong on AMD and where devices are simulated."""
    import torch

    from cluster.probe.door import take_near

    if backend == "gloo":
        return torch.device("cpu")
    return take_near(_visible_index())


def _visible_index() -> int:
    """The index of the device that Ray gave to this worker, among those that the process can see."""
    (own,) = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return os.environ["CUDA_VISIBLE_DEVICES"].split(",").index(own)


def _ready(context: Context) -> Ready:
    logs = _log_files()
    stacks = dump_stacks_on_request(Path(logs[-1]).parent)
    return Ready(
        rank=context.rank,
        logs=logs,
        oom_kills=oom_kills(),
        pid=os.getpid(),
        stacks=stacks,
        threads=os.environ.get("OMP_NUM_THREADS", ""),
    )


def _log_files() -> tuple[str, ...]:
    """The files to which Ray sends this process's output."""
    return tuple(str(Path(f"/proc/self/fd/{number}").readlink()) for number in (1, 2))


def _own_log_tail() -> tuple[str, ...]:
    sys.stdout.flush()
    sys.stderr.flush()
    return log_tail(_log_files())


@dataclass
class Peers(BackendConfig):
    """Tells Train's workers where to meet; the workers join the process group themselves, in ``train``.

    Train's own torch backend would load torch in the driver, in the controller, and in workers before their
    device list is complete.
    """

    @property
    def backend_cls(self) -> type[Backend]:
        return _PeersBackend


class _PeersBackend(Backend):
    # Collectives between the devices of a node need each process to see all of them.
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        worker_group.execute(_set_meeting_point, *worker_group.execute_single(0, _open_meeting))


def _open_meeting() -> tuple[str, str]:
    """Called in rank 0: returns its node's address, and where the ranks meet."""
    place, session = ray.train.get_context(), ray.get_runtime_context()
    address = ray.util.get_node_ip_address()
    if place.get_local_world_size() < place.get_world_size():
        return address, meet_at(address)
    # The folder lies beside Ray's own files, so a worker that is killed leaves nothing elsewhere.
    meeting = meet_in(Path(session.get_temp_dir()) / session.get_session_name())
    atexit.register(rmtree, folder_of(meeting), ignore_errors=True)
    return address, meeting


def _set_meeting_point(address: str, meeting: str) -> None:
    place = ray.train.get_context()
    os.environ.update({_MEETING: meeting})
    os.environ.update(
        MASTER_ADDR=address,
        RANK=str(place.get_world_rank()),
        WORLD_SIZE=str(place.get_world_size()),
        LOCAL_RANK=str(place.get_local_rank()),
        LOCAL_WORLD_SIZE=str(place.get_local_world_size()),
        NODE_RANK=str(place.get_node_rank()),
    )
