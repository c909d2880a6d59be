"""``longhaul data`` says what a training reads. It changes nothing, and starts neither Ray nor a training."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, run_command
from jobs.commandline.output import printable
from jobs.commandline.usage_error import SpecError
from jobs.dataset.excerpt import excerpt, tokenizer_at_hand
from jobs.dataset.facts import (
    RunFacts,
    SourceFacts,
    StepFacts,
    TokenFacts,
    facts_of,
    run_facts,
    source_facts,
    step_facts,
)
from jobs.dataset.text import data_text
from jobs.dataset.verifying import Verified, verify_all
from jobs.runs.data_check.find import find_data, num_samples
from jobs.runs.data_check.stored import index_at
from jobs.runs.data_read.documents import Place
from jobs.runs.data_read.places import documents_of, end_id_of, places_to_read
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Mixture, Tokens

_OF_SPECS = (".yaml", ".yml")
# Reading so many bytes from a disk takes a second.
FEW_BYTES = 64 << 20


def data(args: argparse.Namespace) -> int:
    return run_command("data", lambda: _data(args), {**OF_STORES, SpecError: EXIT_USAGE})


def _data(args: argparse.Namespace) -> int:
    run: RunFacts | None = None
    step: StepFacts | None = None
    sources: list[SourceFacts] | None = None
    spec: RunSpec | None = None
    mixture: Mixture | None = None
    held_out: Tokens | None = None
    if args.what.lower().endswith(_OF_SPECS):
        spec = RunSpec.load(Path(args.what), args.set)
        found = find_data(spec)
        mixture = found if isinstance(found, Mixture) else None
        places = places_to_read(spec, found)
        held_out = found.held_out if found else None
        run = run_facts(spec, num_samples(spec, found), held_out.url if held_out else None)
        step = step_facts(args.step, run, spec, mixture) if args.step else None
    elif args.set or args.step:
        raise SpecError([f"--set and --step belong to a spec, but {args.what} does not end with .yaml"])
    else:
        store, index = index_at(args.what, "data")
        places = [Place(store=store, index=index, end_id=end_id_of(index))]
    verified = _verified(places, mixture, held_out) if places and args.verify else None
    are_few = sum(place.num_bytes for place in places) <= FEW_BYTES
    tokens = [_facts(args, place, spec, are_few=are_few) for place in places]
    if mixture and run:
        sources, tokens = source_facts(mixture, run, tokens), []
    facts = tokens[0] if tokens else None
    if args.json:
        parts = {"tokens": facts, "run": run, "step": step, "verified": verified}
        shown: dict[str, Any] = {key: asdict(part) if part else None for key, part in parts.items()}
        print(json.dumps({**shown, "sources": sources and [asdict(one) for one in sources]}, indent=1))
    else:
        print(printable(data_text(facts, sources, run, step, verified)))
    return EXIT_FAILED if verified and verified.problems else EXIT_OK


def _verified(places: Sequence[Place], mixture: Mixture | None, held_out: Tokens | None) -> Verified:
    """Compares what is trained on, and what is evaluated on if that lies in a place of its own."""
    names = [f"{one.name}: " for one in mixture.sources] if mixture else [""]
    if held_out is None:
        return verify_all(places, names)
    other = Place(store=open_store(held_out.url), index=held_out.index)
    return verify_all([*places, other], [*names, "eval.path: "])


def _facts(args: argparse.Namespace, place: Place, spec: RunSpec | None, *, are_few: bool) -> TokenFacts:
    tokenizer = tokenizer_at_hand(place, args.tokenizer, spec)
    found = documents_of(place, is_asked=args.documents, are_few=are_few)
    documents, unread = (None, found) if isinstance(found, str) else (found, None)
    if unread and args.documents:
        raise SpecError([f"--documents: {place.store.url}: {unread}"])
    facts = facts_of(place.index, place.store.url)
    return replace(facts, documents=documents, unread=unread, excerpt=excerpt(place, tokenizer))
