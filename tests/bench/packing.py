"""How fast ``longhaul pack`` is, beside the faster of the tokenizer library's batch calls on the same cores.

All are whole commands, with their start. The library's read the same lines, encode all of them at once and
write the ids; they need all in memory, count nothing and compare nothing. The tokenizer is trained here, on
made-up words.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

NUM_CHARACTERS, NUM_FILES, ROUNDS = 24_000_000, 50_000, 3
OF_THE_LIBRARY = 1.0
_CALLS = ("encode_batch", "encode_batch_fast")
_SEED = 7

_PACK = "import sys; from jobs.cli.__main__ import main; sys.exit(main(sys.argv[1:]))"
_LIBRARY = """
import json, sys
from array import array
from itertools import chain
from pathlib import Path
from tokenizers import Tokenizer
source, tokenizer, out = map(Path, sys.argv[1:4])
if source.is_dir():
    texts = [path.read_text() for path in sorted(source.iterdir())]
else:
    texts = [json.loads(line)["text"] for line in source.open()]
found = getattr(Tokenizer.from_file(str(tokenizer)), sys.argv[4])(texts, add_special_tokens=False)
out.write_bytes(array("H", chain.from_iterable([*one.ids, 0] for one in found)).tobytes())
"""


def main() -> bool:
    with TemporaryDirectory(prefix="longhaul-bench-") as folder:
        lines, files, tokenizer = _write(Path(folder))
        cores = sorted(os.sched_getaffinity(0))
        met = [
            _beside_the_library(lines, tokenizer, Path(folder), cores[:number]) for number in {1, len(cores)}
        ]
        _beside_the_library(files, tokenizer, Path(folder), cores, rounds=1)
    return all(met)


def _beside_the_library(
    source: Path, tokenizer: Path, folder: Path, cores: Sequence[int], rounds: int = ROUNDS
) -> bool:
    # Else what is imported would be compiled at each start, of ours alone.
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"}
    taken: dict[str, list[float]] = {way: [] for way in ("ours", *_CALLS)}
    written: dict[str, bytes] = {}
    for turn in range(rounds):
        for way in taken if turn % 2 else reversed(taken):
            out = folder / f"{way}-{source.name}-{len(cores)}-{turn}"
            ours = ["pack", source, "--out", out, "--tokenizer", tokenizer]
            arguments = [_PACK, *ours] if way == "ours" else [_LIBRARY, source, tokenizer, out, way]
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", *map(str, arguments)],
                check=True,
                stdout=subprocess.DEVNULL,
                env=environment,
                preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )
            taken[way].append(time.perf_counter() - began)
            shards = sorted(out.glob("*.bin")) if way == "ours" else [out]
            written[way] = b"".join(path.read_bytes() for path in shards)
    assert len(set(written.values())) == 1, "they wrote other ids"
    ours, call = median(taken["ours"]), min(_CALLS, key=lambda call: median(taken[call]))
    library = median(taken[call])
    what = f"{NUM_FILES:,} files" if source.is_dir() else f"{source.stat().st_size / 1e6:.0f} MB"
    print(
        f"pack           {what} on {len(cores)} of the cores in {ours:.1f} s; the tokenizer library's {call} "
        f"{library:.1f}, so {library / ours:.2f} of its speed (bound {OF_THE_LIBRARY:g})"
    )
    return library / ours >= OF_THE_LIBRARY


def _write(folder: Path) -> tuple[Path, Path, Path]:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    by = random.Random(_SEED)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = ["".join(by.choices(letters, k=1 + min(11, int(by.expovariate(0.25))))) for _ in range(20_000)]
    weights = [1 / (place + 3) for place in range(len(words))]
    texts: list[str] = []
    num_characters = 0
    while num_characters < NUM_CHARACTERS:
        texts.append(" ".join(by.choices(words, weights, k=int(by.lognormvariate(5.5, 1)) + 3)))
        num_characters += len(texts[-1])
    lines, files, file = folder / "texts.jsonl", folder / "files", folder / "tokenizer.json"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    files.mkdir()
    for number in range(NUM_FILES):
        (files / f"{number:06}.txt").write_text(texts[number % len(texts)][:400])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        texts[:800],
        trainers.BpeTrainer(
            vocab_size=16_000,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.save(str(file))
    return lines, files, file


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
