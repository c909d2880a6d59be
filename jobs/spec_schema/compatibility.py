"""Says what may change in a run's spec between two starts, and what would make it another run. Pure.

A resumed run keeps its model, its samples and their order, its arithmetic and its optimizer. Strategy and
world size may change as long as a step has the same number of samples. Saving, evaluation, recording, limits
and the length of the run may change too. So may the weights of a mixture's sources, from where the run is,
the name of a model, and the folder that it was read from.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jobs.launch.torchrun import name_flag
from jobs.spec_schema.stored_spec import Described, stored_model
from jobs.training.data.mixture import names_in
from jobs.training.models.hugging_face import config_json
from jobs.training.task.presets import ModelConfig

_KEPT = ("model", "weights", "seed", "precision", "seq_len")
_KEPT_SECTIONS = ("model", "optimizer", "data")
# These keys say where tokens are and how they are checked. The tokens' digest says which they are, and
# ``data.mixture`` which sources are mixed in which order.
_OF_PLACE = ("data.path", "data.sources", "data.tokenizer", "data.local.dir", "data.local.gib", "eval.path")
_BATCH = "world_size x micro_batch x grad_accum"


def refusals(stored: Described, wanted: Described, defaults: Described, *, place: str) -> list[str]:
    """One line per change that makes the spec another run, then a line with alternatives; empty without such
    changes.

    ``defaults`` fill in keys that an older ``stored`` lacks. Keys that ``wanted`` lacks are not compared.
    ``place`` is the run's address from elsewhere, ``STORE/runs/NAME``.
    """
    stored, wanted = _with_comparable_models(stored, wanted)
    has, asks, usual = _flat(stored), _flat(wanted), _flat(defaults)
    run = place.rpartition("/")[2]
    lines = []
    for key in sorted(key for key in asks if _is_kept(key, asks)):
        before, now = has.get(key, usual.get(key)), asks[key]
        if key == "data.mixture" and before:
            before, now = names_in(before), names_in(now)
        if before != now:
            lines.append(f"{key}: {_found(run, before, now)}; {_how_back(key, before, asks)}")
    before, now = _sequences({**usual, **has}), _sequences({**usual, **asks})
    if before != now:
        found = _found(run, f"{before} sequences per step", now)
        lines.append(f"{_BATCH}: {found}; let them multiply to {before}")
    return [*lines, _other_ways(place)] if lines else []


def _with_comparable_models(stored: Described, wanted: Described) -> tuple[Described, Described]:
    """Both specs with their models as fields of a ``config.json``; by name, if both are presets.

    A stored shape that can't be read is not compared.
    """
    if isinstance(wanted.get("model"), str) and isinstance(stored.get("model"), str):
        return stored, wanted
    before, now = stored_model(stored), stored_model(wanted)
    if now is None:
        return stored, wanted
    if before is not None:
        return {**stored, "model": _fields(before)}, {**wanted, "model": _fields(now)}
    if isinstance(stored.get("model"), str):
        return stored, {**wanted, "model": now.name}
    return stored, {key: value for key, value in wanted.items() if key != "model"}


def _fields(model: ModelConfig) -> Described:
    fields = {key: value for key, value in config_json(model, "").items() if key != "architectures"}
    return {**fields, "rope_scaling": json.dumps(fields["rope_scaling"])}


def _is_kept(key: str, asks: Described) -> bool:
    if key in _OF_PLACE:
        return False
    if asks.get("data.kind") == "tokens":
        # The number of held-out samples must stay: it decides which samples are trained on.
        if key == "data.samples":
            return False
        if key in ("eval.samples", "eval.digest"):
            return True
    return key in _KEPT or key.partition(".")[0] in _KEPT_SECTIONS


def _found(run: str, before: object, now: object) -> str:
    return f"the run {run} has {_shown(before)}, this spec {_shown(now)}"


def _how_back(key: str, before: object, asks: Described) -> str:
    if key == "data.digest":
        return f"put the tokens back at {asks.get('data.path') or 'the places of the sources'}"
    if key == "eval.digest":
        return "put back what it is evaluated on (eval.path), or leave eval.path out as it did"
    if key == "data.mixture":
        return "name the same sources in the same order; their weights may change"
    if key.startswith("model."):
        return "give the config.json that it began with"
    return f"put it back (--set {key}={_shown(before)})"


def _other_ways(place: str) -> str:
    return (
        f"nothing was started; else begin again (--fresh), or train under another name ({name_flag()}), "
        f"from where this run is if you like (--resume {place})"
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _sequences(flat: Described) -> int:
    ranks = flat.get("world_size.max", flat.get("world_size", 1))
    return int(ranks) * int(flat.get("micro_batch", 1)) * int(flat.get("grad_accum", 1))


def _flat(nested: Described) -> dict[str, Any]:
    return dict(_leaves(nested, ""))


def _leaves(nested: Described, above: str) -> Iterator[tuple[str, Any]]:
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
