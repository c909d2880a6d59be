"""Makes the task of each attempt of a long run from its spec, its data and its log."""

import hashlib
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpointing.errors import NothingToResume, taken_over
from checkpointing.generations.choice import Spoilt, find
from checkpointing.generations.repository import Repository, existing_run
from checkpointing.generations.retention import of_this_life
from checkpointing.log.history import LogView
from checkpointing.stores.opening import open_store
from cluster.inventory import WorkerGroup
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.recovery.journal import read_newest
from jobs.runs.data_check.find import Data, num_samples
from jobs.runs.data_read.record import read_sources
from jobs.runs.driver_presence import DriverPresence
from jobs.spec_schema.run_spec import RunSpec
from jobs.spec_schema.stored_spec import store_spec
from jobs.training.data.mixture import weights_text
from jobs.training.data.shard_ledger import ledger_of, read_ledger
from jobs.training.task.task import Mixture, Origin, Task, Tokens
from reporting.recording.read_data import encode, name_of

# No source of a mixture can have this name.
_HELD_OUT = "held+out"


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a user asked the run to begin; later attempts continue from what the first ones saved.

    ``term`` is that of this driver's first attempt.
    """

    origin: Origin | None
    what: str
    fresh: bool
    term: int

    def is_fresh(self, view: LogView) -> bool:
        return self.fresh and not view.has_begun_since(self.term)

    def resume(self, view: LogView) -> str:
        return "latest" if view.has_saved_since(self.term) else self.what


def beginning(resume: str, repository: Repository, spec: RunSpec, *, fresh: bool) -> Beginning:
    """Where to begin: from another run, or from one of the run's own generations. Raises an error if it does
    not exist.

    ``--resume`` may name another run, or a generation of it, by its place in a store. Of a run, the latest
    generation is the beginning; where there is a key, its log must be signed. It may also name a complete
    generation of this run that is missing from the log.

    A run that has saved since then goes on from its own saves by the same command, which Slurm and
    supervisors repeat: what has become of the other run does not matter any more.
    """
    view = repository.refresh()
    url, slash, name = resume.rstrip("/").rpartition("/runs/")
    if slash:
        goes_on = not fresh and of_this_life(view)
        origin = _origin(url, name, resume, None if goes_on else spec)
        return Beginning(origin=origin, what="latest", fresh=fresh, term=view.term + 1)
    if resume != "latest" and fresh:
        raise SpecError([f"--resume {resume} and --fresh exclude each other; give one of them"])
    if resume != "latest" and resume not in {one.name for one in repository.unnamed(resume)}:
        find(view, resume, spec.checkpoint.retention)
    return Beginning(origin=None, what=resume, fresh=fresh, term=view.term + 1)


def _origin(url: str, place: str, resume: str, spec: RunSpec | None) -> Origin:
    """The other run. With a ``spec``, it is to be begun from now."""
    store = open_store(url, base=store_base())
    name, _, generation = place.partition("/gen/")
    try:
        repository = existing_run(store, name)
    except NothingToResume:
        raise NothingToResume(f"--resume {resume}: there is no run {name!r} in {store.url}") from None
    what = generation or "latest"
    if spec is not None:
        repository.refuse_as_origin(what)
        if generation:
            find(repository.view, generation, spec.checkpoint.retention)
    return Origin(store=store.url, run=name, what=what)


class Tasks:
    def __init__(
        self,
        spec: RunSpec,
        repository: Repository,
        beginning: Beginning,
        tokens: Data | None,
        presence: DriverPresence,
    ) -> None:
        self._spec = spec
        self._repository = repository
        self._beginning = beginning
        self._tokens = tokens
        self._presence = presence
        self._owner = f"{socket.gethostname()}:{os.getpid()}"
        self._first_term = repository.view.term
        self._term: int | None = None
        self._is_first = True

    def make(self, group: WorkerGroup, world_size: int, leased_s: float) -> Task:
        """Takes the lease, which fences every earlier attempt, and makes the task of one in ``group``.

        Raises ``Fenced`` if another driver has taken the run over since this driver last took the lease, or
        tried to.
        """
        self._presence.refuse(is_expected=self._has_one_come())
        self._give_way()
        repository, begins = self._repository, self._beginning
        view = repository.view
        term = repository.take_over(
            self._owner, fresh=begins.is_fresh(view), what=begins.resume(view), spoilt=self._spoilt
        )
        self._term = term
        described = described_run(self._spec, self._tokens)
        store_spec(repository.store, repository.run, described)
        # A run from the beginning must not keep what an earlier life of its name recorded.
        if self._is_first and (self._tokens or begins.fresh):
            repository.store.put(name_of(repository.run), encode(read_sources(self._spec, self._tokens)))
        self._is_first = False
        return self._task(group, world_size, leased_s, term, described)

    def _spoilt(self) -> Spoilt:
        newest = read_newest(self._repository.store, self._repository.run, self._repository.view)
        return newest.spoilt if newest else ()

    def _has_one_come(self) -> bool:
        """Whether another driver has taken the lease since this one was started; its first status may still
        be on its way.
        """
        return self._term is None and self._repository.refresh().term > self._first_term

    def _give_way(self) -> None:
        if self._term is None:
            self._term = self._repository.view.term
            return
        view = self._repository.refresh()
        # This driver's own lease may have reached the log although the answer got lost.
        if view.term > self._term and view.owner != self._owner:
            raise taken_over(self._repository.run, view.term, view.owner)

    def _task(
        self, group: WorkerGroup, world_size: int, leased_s: float, term: int, described: Mapping[str, Any]
    ) -> Task:
        spec, repository = self._spec, self._repository
        samples, data = num_samples(spec, self._tokens), self._known()
        return Task(
            run=repository.run,
            store=repository.store.url,
            recipe=spec.recipe(world_size, num_steps=spec.num_steps(samples)),
            vendor=group.vendor,
            simulated=group.simulated,
            may_mix_devices=group.may_mix_devices,
            num_steps=spec.num_steps(samples),
            num_samples=samples,
            saving=spec.saving(),
            term=term,
            leased_s=leased_s,
            attempt=secrets.token_hex(4),
            lineage=repository.lineage(),
            resume=self._beginning.resume(repository.view),
            origin=self._beginning.origin,
            eval_every=spec.eval.every_steps,
            eval_samples=spec.eval.samples,
            spec=described,
            group=group.name,
            may_move=len(spec.group) > 1,
            recording=spec.recording(),
            tokens=data if isinstance(data, Tokens) else None,
            mixture=data if isinstance(data, Mixture) else None,
            shuffle=spec.data.shuffle,
            weights=str(absolute(spec.weights)) if spec.weights else None,
            spike_bound=spec.guard.bound(),
            check_every=spec.guard.check_every_steps,
            check_every_s=spec.guard.check_every_s,
        )

    def _known(self) -> Data | None:
        """The data, with what earlier attempts of this life found out about their bytes."""
        match self._tokens:
            case Tokens() as tokens:
                return replace(self._with_ledger(tokens, None), held_out=self._held_out(tokens))
            case Mixture(sources=sources) as mixture:
                known = (replace(one, tokens=self._with_ledger(one.tokens, one.name)) for one in sources)
                return Mixture(sources=tuple(known), held_out=self._held_out(mixture))
            case None:
                return None

    def _held_out(self, data: Data) -> Tokens | None:
        return data.held_out and self._with_ledger(data.held_out, _HELD_OUT)

    def _with_ledger(self, tokens: Tokens, source: str | None) -> Tokens:
        store, view = self._repository.store, self._repository.view
        ledger = ledger_of(self._repository.run, view.life_term, source)
        wanted = {shard.name for shard in tokens.index.shards}
        return replace(tokens, ledger=ledger, known=read_ledger(store, ledger, wanted))


def absolute(place: str) -> Path:
    return Path(place).expanduser().absolute()


def described_run(spec: RunSpec, data: Data | None) -> Mapping[str, Any]:
    """The spec as it is stored with the run. Values of environment variables stay out: they may be
    secrets.
    """
    described = {**spec.model_dump(mode="json"), "environment": sorted(spec.environment)}
    recipe = spec.recipe(num_steps=spec.num_steps(num_samples(spec, data)))
    described["optimizer"]["decay_steps"] = recipe.optimizer.decay_steps
    match data:
        case Tokens():
            described["data"] |= {"digest": data.index.digest, "samples": data.windows.num_samples}
            described["data"]["end_id"] = data.end_id
        case Mixture(sources=sources):
            digests = "\n".join(f"{one.name} {one.tokens.index.digest}" for one in sources)
            described["data"] |= {
                "digest": hashlib.sha256(digests.encode()).hexdigest(),
                "samples": data.num_samples,
                "mixture": weights_text(data),
                "end_id": sources[0].tokens.end_id,
            }
    if data:
        # None is kept too: then what is held out is not trained on.
        described["eval"]["digest"] = data.held_out.index.digest if data.held_out else None
    return described
