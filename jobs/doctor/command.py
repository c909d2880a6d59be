"""``longhaul doctor`` asks every node, tests the store, forecasts the space, and prints findings."""

import argparse
import os
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from checkpointing.stores.contract import Store, StoreError
from checkpointing.stores.opening import open_store
from checkpointing.stores.probing import examine
from cluster.cluster_file import read_cluster
from cluster.inventory import ClusterError, Inventory, WorkerGroup
from cluster.probe.kernels.recorded import NotRecorded, in_package, of_nodes
from cluster.probe.kernels.recorded_file import add, in_file, in_file_if_any
from cluster.probe.node_facts import NodeFacts, Question, Shape
from cluster.probe.versions import FOREMOST, SUPPORTED
from cluster.this_machine import this_machine
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_USAGE, run_command
from jobs.commandline.output import printable, say
from jobs.commandline.store_location import store_base
from jobs.commandline.usage_error import SpecError
from jobs.doctor.cross_node_checks import kind_text, same_results
from jobs.doctor.examination import Examination, Link, NodeAnswer, Promise, Unusable
from jobs.doctor.forecast import forecast
from jobs.doctor.node_checks import exit_code, judge
from jobs.doctor.text import as_json, as_text
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.presets import ModelConfig, preset
from reporting.results.device_rates import MachineRecord, MeasuredRate, write_machine

_STORE_DEADLINE_S = 60.0
# The timed matrix products are those of these models' MLPs, which do most of a training's work.
_SMALL, _LARGE = ("llama-tiny", "llama-mini"), ("llama-3.1-8b", "qwen-2.5-7b")
_TOKENS_ON_CPU, _TOKENS = 256, 8192


def doctor(args: argparse.Namespace) -> int:
    wrong_usage = dict.fromkeys((SpecError, ClusterError, StoreError, NotRecorded), EXIT_USAGE)
    return run_command("doctor", lambda: _doctor(args), {**wrong_usage, Unusable: EXIT_FAILED})


def _doctor(args: argparse.Namespace) -> int:
    if args.security:
        from jobs.doctor.security.command import security

        return security(args)
    spec = RunSpec.load(args.spec, []) if args.spec else None
    store = open_store(args.store or (spec.store if spec else "results"), base=store_base())
    promised = read_cluster(args.cluster) if args.cluster else None
    golden = in_package() + (in_file(args.golden) if args.golden else ())
    if args.record_golden:
        # What can't be added to is told now, and not after minutes.
        in_file_if_any(args.record_golden)
    seen = replace(examination(spec, store, promised), golden=golden)
    findings = judge(seen)
    print(as_json(seen, findings) if args.json else printable(as_text(seen, findings)), end="")
    if not seen.store.failed:
        _keep_rates(store, seen)
    if args.record_golden:
        _record_golden(args.record_golden, seen, is_compared=bool(args.golden))
    return exit_code(findings)


def examination(spec: RunSpec | None, store: Store, promised: Inventory | None) -> Examination:
    """Collects all observations as data. A store or node without an answer in time is recorded as failed."""
    facts = examine(store, deadline_s=_STORE_DEADLINE_S)
    is_cluster = bool(os.environ.get("RAY_ADDRESS"))
    inventory, answers, links = _asked(spec, store if facts.failed is None else None, is_cluster)
    return Examination(
        source=inventory.source,
        own_versions=_own_versions(),
        tested={package: SUPPORTED[package].tested for package in FOREMOST},
        supported=SUPPORTED,
        answers=answers,
        store=facts,
        links=links,
        promises=_promises(promised) if promised else (),
        forecast=forecast(spec, promised or inventory) if spec else None,
        draining=tuple(
            f"{group.name}: {node.short_name}" for group in inventory.groups for node in group.excluded
        ),
        is_cluster=is_cluster,
    )


def question_of(group: WorkerGroup, spec: RunSpec | None) -> Question:
    on_cpu = group.vendor == "cpu" or group.simulated
    models = [preset(name) for name in (_SMALL if on_cpu else _LARGE)]
    if spec and not on_cpu and spec.model.config not in models:
        models.append(spec.model.config)
    return Question(
        shapes=tuple(
            shape for model in models for shape in _shapes(model, _TOKENS_ON_CPU if on_cpu else _TOKENS)
        ),
        folder=spec.checkpoint.local.dir if spec else None,
        is_one_core=on_cpu,
    )


def _shapes(model: ModelConfig, tokens: int) -> tuple[Shape, Shape]:
    """The shapes of the MLP's up and down projections."""
    return (
        Shape(rows=tokens, inner=model.hidden_size, columns=model.intermediate_size),
        Shape(rows=tokens, inner=model.intermediate_size, columns=model.hidden_size),
    )


def _asked(
    spec: RunSpec | None, store: Store | None, is_cluster: bool
) -> tuple[Inventory, tuple[NodeAnswer, ...], tuple[Link, ...]]:
    if not is_cluster:
        from jobs.doctor.this_machine import ask_this_machine

        inventory = this_machine()
        (group,) = inventory.groups
        return inventory, *ask_this_machine(inventory, question_of(group, spec))
    from jobs.doctor.survey import ask_cluster

    return ask_cluster(lambda group: question_of(group, spec), store)


def _own_versions() -> dict[str, str | None]:
    """The driver's, of all that has a range; what nodes must have in common stands first."""
    from cluster.probe.host import version_of, versions

    return versions() | {package: version_of(package) for package in SUPPORTED}


def _promises(promised: Inventory) -> tuple[Promise, ...]:
    return tuple(
        Promise(
            group=group.name,
            num_nodes=len(group.nodes),
            devices_per_node=min(node.num_devices for node in group.nodes),
        )
        for group in promised.groups
        if group.nodes
    )


def _keep_rates(store: Store, seen: Examination) -> None:
    """Stores the measured rates of nodes that nobody else was using; reports compare speeds with them."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    for answer in seen.answers:
        facts = answer.facts
        if isinstance(facts, NodeFacts) and facts.gemms and not answer.asked.in_use:
            with suppress(StoreError):
                write_machine(store, _record(answer.asked.group, facts, now))


def _record_golden(file: Path, seen: Examination, *, is_compared: bool) -> None:
    """Adds what the devices computed to what the file holds, and says what of it was replaced."""
    nodes = [answer.facts for answer in seen.answers if isinstance(answer.facts, NodeFacts)]
    if is_compared and any(one.level == "failed" for one in same_results(seen)):
        raise Unusable(f"{file}: not recorded: devices compute other results than --golden has")
    try:
        new = of_nodes(nodes)
        replaced = {one.kind for one in add(file, new)}
    except (NotRecorded, OSError) as error:
        raise Unusable(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    for one in new:
        what = "recorded anew, with other results than before" if one.kind in replaced else "recorded"
        say(f"{file}: {kind_text(one.kind)}: {what}", to=sys.stderr)


def _record(group: str, facts: NodeFacts, measured_at: str) -> MachineRecord:
    return MachineRecord(
        group=group,
        node=facts.host,
        device=facts.device,
        measured_at=measured_at,
        torch=facts.versions.get("torch"),
        rates=tuple(
            MeasuredRate(
                device=gemm.device,
                dtype=gemm.dtype,
                shape=(gemm.shape.rows, gemm.shape.inner, gemm.shape.columns),
                flops_per_s=gemm.flops_per_s,
            )
            for gemm in facts.gemms
        ),
    )
