"""``longhaul data`` says what a training reads. It changes nothing, and starts neither Ray nor a training."""

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from checkpointing.stores.contract import StoreError
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, run_command
from jobs.commandline.output import printable
from jobs.commandline.usage_error import SpecError
from jobs.dataset.documents import DocumentFacts, Place, read_documents
from jobs.dataset.excerpt import excerpt, tokenizer_at_hand
from jobs.dataset.facts import (
    RunFacts,
    SourceFacts,
    StepFacts,
    TokenFacts,
    facts_of,
    num_bytes,
    run_facts,
    source_facts,
    step_facts,
)
from jobs.dataset.text import data_text
from jobs.dataset.verifying import verify
from jobs.runs.token_check import Data, find_data, index_at, num_held_out_of_each, num_samples, places_of
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Mixture
from jobs.training.task.token_index import DataError, TokenIndex

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
    if args.what.lower().endswith(_OF_SPECS):
        spec = RunSpec.load(Path(args.what), args.set)
        found = find_data(spec)
        mixture = found if isinstance(found, Mixture) else None
        if mixture and args.verify:
            raise SpecError([f"--verify: {args.what} names several sources; verify each place by itself"])
        places = _places(spec, found)
        held_out = found.held_out if found else None
        run = run_facts(spec, num_samples(spec, found), held_out.url if held_out else None)
        step = step_facts(args.step, run, spec, mixture) if args.step else None
    elif args.set or args.step:
        raise SpecError([f"--set and --step belong to a spec, but {args.what} does not end with .yaml"])
    else:
        store, index = index_at(args.what, "data")
        places = [Place(store=store, index=index, end_id=_end_id(index))]
    verified = verify(places[0].store, places[0].index) if places and args.verify else None
    are_few = sum(num_bytes(place.index) for place in places) <= FEW_BYTES
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


def _places(spec: RunSpec, found: Data | None) -> list[Place]:
    return [
        Place(
            store=open_store(tokens.url),
            index=tokens.index,
            end_id=_end_id(tokens.index) if tokens.end_id is None else tokens.end_id,
            windows=tokens.windows,
            num_held_out=num_held_out_of_each(spec),
        )
        for tokens in places_of(found)
    ]


def _end_id(index: TokenIndex) -> int | None:
    return index.vocabulary.end_id if index.vocabulary else None


def _facts(args: argparse.Namespace, place: Place, spec: RunSpec | None, *, are_few: bool) -> TokenFacts:
    tokenizer = tokenizer_at_hand(place, args.tokenizer, spec)
    documents, unread = _documents(place, is_asked=args.documents, are_few=are_few)
    facts = facts_of(place.index, place.store.url)
    return replace(facts, documents=documents, unread=unread, excerpt=excerpt(place, tokenizer))


def _documents(
    place: Place, *, is_asked: bool, are_few: bool
) -> tuple[DocumentFacts, None] | tuple[None, str]:
    """The documents, or why they were not read. Raises ``SpecError`` if they were asked for and can't be."""
    if place.end_id is None and not place.index.chat:
        reason = "nothing tells which token ends one; a spec says so with data.end_id"
    elif not (is_asked or (are_few and isinstance(place.store, LocalStore))):
        return None, f"--documents reads all {num_bytes(place.index):,} bytes for them"
    else:
        try:
            return read_documents(place), None
        except DataError as error:
            reason = str(error)
        except StoreError as error:
            if is_asked:
                raise
            reason = str(error)
    if is_asked:
        raise SpecError([f"--documents: {place.store.url}: {reason}"])
    return None, reason
