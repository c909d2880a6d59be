"""``longhaul data`` says what a training reads. It changes nothing, and starts neither Ray nor a training."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from checkpointing.stores.contract import Store
from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, run_command
from jobs.commandline.output import printable
from jobs.commandline.usage_error import SpecError
from jobs.dataset.facts import RunFacts, SourceFacts, StepFacts, facts_of, run_facts, source_facts, step_facts
from jobs.dataset.text import data_text
from jobs.dataset.verifying import verify
from jobs.runs.token_check import find_data, index_at, num_samples
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Mixture, Tokens
from jobs.training.task.token_index import TokenIndex

_OF_SPECS = (".yaml", ".yml")


def data(args: argparse.Namespace) -> int:
    return run_command("data", lambda: _data(args), {**OF_STORES, SpecError: EXIT_USAGE})


def _data(args: argparse.Namespace) -> int:
    run: RunFacts | None = None
    step: StepFacts | None = None
    sources: list[SourceFacts] | None = None
    tokens: tuple[Store, TokenIndex] | None
    if args.what.lower().endswith(_OF_SPECS):
        spec = RunSpec.load(Path(args.what), args.set)
        found = find_data(spec)
        tokens = (open_store(found.url), found.index) if isinstance(found, Tokens) else None
        mixture = found if isinstance(found, Mixture) else None
        if mixture and args.verify:
            raise SpecError([f"--verify: {args.what} names several sources; verify each place by itself"])
        held_out = found.held_out if found else None
        run = run_facts(spec, num_samples(spec, found), held_out.url if held_out else None)
        sources = source_facts(mixture, run) if mixture else None
        step = step_facts(args.step, run, spec, mixture) if args.step else None
    elif args.set or args.step:
        raise SpecError([f"--set and --step belong to a spec, but {args.what} does not end with .yaml"])
    else:
        tokens = index_at(args.what, "data")
    facts = facts_of(tokens[1], tokens[0].url) if tokens else None
    verified = verify(*tokens) if tokens and args.verify else None
    if args.json:
        parts = {"tokens": facts, "run": run, "step": step, "verified": verified}
        shown: dict[str, Any] = {key: asdict(part) if part else None for key, part in parts.items()}
        print(json.dumps({**shown, "sources": sources and [asdict(one) for one in sources]}, indent=1))
    else:
        print(printable(data_text(facts, sources, run, step, verified)))
    return EXIT_FAILED if verified and verified.problems else EXIT_OK
