"""Attack 4: the cache of tokens has a name in the common temporary folder that everybody can foresee. Another
user is there first, with a shard of hers to be trained on and links to a file of its owner's.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet as pq

from tests.security.attack import STRANGER, Done, GotIn, NotTried, Product, as_stranger, own, product

_RUN = """\
name: m
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
micro_batch: 2
steps: 4
data: {{kind: tokens, path: {tokens}}}
eval: {{samples: 1}}
checkpoint: {{every_steps: 4}}
"""
_MINE = "mine alone"
_NUM_IDS = 33 * 20


def attack(tree: Path) -> str:
    with product(tree) as its:
        tokens, private = its.home / "tokens", its.home / "authorized_keys"
        tokens.mkdir()
        for name in ("0.parquet", "1.parquet"):
            pq.write_table(pyarrow.table({"input_ids": [7] * _NUM_IDS}), tokens / name)
        # Whoever may read the data can do the same run of her own, and so learns the names.
        hers = its.home / "hers"
        hers.mkdir()
        own(hers, its.user)
        done, losses = _trained(its, tokens, "first", TMPDIR=str(hers))
        (cache,) = hers.glob("longhaul-tokens-*") or [None]
        if done.code != 0 or cache is None:
            raise NotTried(f"no cache of tokens to attack: {done.last_line}")
        own(hers, STRANGER)
        private.write_text(_MINE, encoding="utf-8")
        own(private, its.user)
        as_stranger(lambda: list(_plant(cache, its.home.parent / "tmp" / cache.name, private)))
        done, found = _trained(its, tokens, "second")
        if private.read_text(encoding="utf-8") != _MINE:
            raise GotIn("the run wrote through another user's link into a private file of its owner's")
        if done.code == 0 and found != losses:
            raise GotIn("the run trained on a shard that another user planted")
        return f"nothing of hers is read or written: {'trained as before' if found else done.last_line}"


def _trained(its: Product, tokens: Path, name: str, **more: str) -> tuple[Done, list[float]]:
    spec, store = its.home / f"{name}.yaml", its.home / name
    spec.write_text(_RUN.format(tokens=tokens), encoding="utf-8")
    done = its.run("train", spec, "--executor", "inline", "--store", store, **more)
    rows = [row for part in store.glob("runs/m/parts/steps/*") for row in pq.read_table(part).to_pylist()]
    return done, [row["loss"] for row in sorted(rows, key=lambda row: row["step"])]


def _plant(cache: Path, folder: Path, private: Path) -> Iterator[str]:
    """The same names: one shard of other ids, and links where the other one is worked on."""
    for path in sorted(path for path in cache.rglob("*") if not path.is_dir()):
        place = folder / path.relative_to(cache)
        place.parent.mkdir(parents=True, exist_ok=True)
        for name in {place.name, f".{place.name}.tmp", f".{place.name}.lock"} - {"0.parquet", "1.parquet"}:
            if "0.parquet" not in name and not os.path.lexists(place.parent / name):
                (place.parent / name).symlink_to(private)
        if place.name == "0.parquet":
            place.write_bytes((9).to_bytes(4, "little") * _NUM_IDS)
        yield str(place)
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o777 if path.is_dir() else 0o666)
