"""How long a run over many shards takes until it has ended after two steps, beside one over a single shard.

The tokens are the same. Each is a whole command: its start is most of it.
"""

import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from jobs.training.task.token_index import INDEX, TokenIndex, TokenShard, to_json

NUM_SHARDS, SHARD_TOKENS, ROUNDS = 10_000, 500, 5
BOUND = 1.1
_SEED = 7
_TRAIN = "import sys; from jobs.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
_SPEC = """
name: {name}
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 64
micro_batch: 1
grad_accum: 1
steps: 2
data: {{kind: tokens, path: {path}}}
checkpoint: {{every_steps: 2}}
"""


def main() -> bool:
    taken: dict[int, list[float]] = {1: [], NUM_SHARDS: []}
    with TemporaryDirectory(prefix="longhaul-bench-") as name:
        folder = Path(name)
        for num_shards in taken:
            _write(folder / f"{num_shards}", num_shards)
        for turn in range(ROUNDS):
            for num_shards in taken if turn % 2 else reversed(taken):
                taken[num_shards].append(_run(folder, num_shards, turn))
    one, many = (median(found) for found in taken.values())
    print(
        f"shards         a run of two steps over {NUM_SHARDS:,} shards in {many:.1f} s; over one {one:.1f}, "
        f"so {many / one:.2f} of it (bound {BOUND})"
    )
    return many / one <= BOUND


def _run(folder: Path, num_shards: int, turn: int) -> float:
    spec = folder / f"over-{num_shards}-{turn}.yaml"
    spec.write_text(_SPEC.format(name=spec.stem, path=folder / f"{num_shards}"))
    command = [sys.executable, "-c", _TRAIN, "train", str(spec), "--store", str(folder / "store")]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def _write(folder: Path, num_shards: int) -> None:
    folder.mkdir()
    ids = random.Random(_SEED).randbytes(NUM_SHARDS * SHARD_TOKENS * 2)
    size = len(ids) // num_shards
    shards = []
    for number in range(num_shards):
        # Ids below the vocabulary of the smallest model.
        data = bytes(byte & (0x01 if at % 2 else 0xFF) for at, byte in enumerate(ids[number * size :][:size]))
        name = f"{number:05}.bin"
        (folder / name).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        shards.append(TokenShard(name=name, num_tokens=size // 2, sha256=digest, largest_id=511))
    (folder / INDEX).write_bytes(to_json(TokenIndex(dtype="uint16", shards=tuple(shards))))


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
