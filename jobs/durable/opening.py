"""From what a script passes to ``durable.run`` to a session that has restored its state."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from checkpointing.generations.repository import Repository
from checkpointing.stores.opening import open_store
from jobs.commandline.store_location import store_base
from jobs.durable.lease import share_lease, take_lease
from jobs.durable.records import OwnRecord
from jobs.durable.session import Session
from jobs.durable.telling import Teller
from jobs.launch.torchrun import LauncherPlace
from jobs.run_progress.status_file import StatusFile
from jobs.runs.driver_presence import DriverPresence
from jobs.runs.stop_signals import StopSignals
from jobs.spec_schema.own_loop import OwnLoop
from jobs.training.ranks.this_rank import this_rank
from jobs.training.state.own_state import OwnState
from jobs.training.state.saved_run import SavedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """Those of ``durable.run``. ``store`` is a folder or a URL, ``state`` the objects by their names."""

    spec: OwnLoop
    store: str
    state: Mapping[str, object]
    fresh: bool
    resume: str


def open_session(arguments: Arguments, stop_signals: StopSignals) -> Session:
    """Takes the run's lease and prepares this rank; ``Session.open`` follows. Collective."""
    spec = arguments.spec
    context = this_rank(torch.device("cpu"), LauncherPlace.of_this_process().key)
    state = OwnState(arguments.state, context.rank)
    # Whether all of it can be saved is known before anything is started.
    state.pieces()
    state.description()
    context.device = state.device()
    store = open_store(arguments.store, base=store_base())
    repository = Repository(store, spec.name)
    presence = DriverPresence(store, spec.name, is_wanted=context.rank == 0)
    lease = share_lease(
        lambda: take_lease(spec, repository, presence, fresh=arguments.fresh, resume=arguments.resume),
        context.rank,
    )
    saving = spec.checkpoint.saving()
    saved = SavedRun(
        run=spec.name,
        term=lease.term,
        attempt=lease.attempt,
        lineage=lease.lineage,
        strategy="own loop",
        world_size=context.world_size,
        # As under ddp, each rank may load from the files of all.
        ranks_per_copy=1,
        about={"ranks_per_copy": 1, "spec": spec.described()},
        resume=arguments.resume,
        retention=saving.retention,
    )
    status = StatusFile(
        store, spec.name, presence.own, is_fresh=arguments.fresh, may_speak=presence.may_speak
    )
    record = OwnRecord(spec.name, lease.term, spec.tokens_per_step, context, store)
    teller = Teller(spec, lease.term, status, record, is_rank_0=context.rank == 0)
    return Session(saved, saving, context, state, store, teller, stop_signals)
