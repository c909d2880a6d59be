"""A file of tiktoken: in each line a token in base64, and its rank.

The file tells neither how a text is cut into words nor which tokens are special. The library knows both by
the encoding's name, which the file's name has to be. Nothing is fetched.
"""

import binascii
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from types import FunctionType
from typing import Any

from jobs.packing.pieces import InputError
from jobs.training.task.token_index import Vocabulary

# Those of the library's encodings whose file has their name.
KNOWN = ("cl100k_base", "o200k_base", "r50k_base", "p50k_base")
_END = "<|endoftext|>"
_MOST_TOKENS = 2**21
# The library breaks off at about a million white characters in a row.
MOST_WHITE = 2**18
_WHITE = re.compile(rf"\s{{{MOST_WHITE + 1}}}")


class TiktokenTokenizer:
    """Gives the library's own ids. A special token's text becomes it only with ``reads_special``."""

    def __init__(self, name: str, content: bytes, end_token: str | None, *, reads_special: bool) -> None:
        ranks = _ranks(name, content)
        self._encoding = _load(name, ranks)
        special = {
            token: self._encoding.encode_single_token(token) for token in self._encoding.special_tokens_set
        }
        self._known = {*ranks.values(), *special.values()}
        token = end_token or _END
        if token not in special:
            raise InputError(
                f"--end-token {token}: {name} has no such token ({', '.join(sorted(special)):.200})"
            )
        self.begin_ids: Sequence[int] = ()
        self.end_id = special[token]
        self.vocabulary = Vocabulary(
            tokenizer=name,
            digest=hashlib.sha256(content).hexdigest(),
            size=self._encoding.n_vocab,
            end_id=self.end_id,
        )
        self._allowed: set[str] = set(special) if reads_special else set()
        self._special = re.compile("|".join(map(re.escape, sorted(special, key=len, reverse=True))))

    def ids(self, text: str) -> Sequence[int]:
        [ids] = self.ids_of_each([text])
        return ids

    def ids_of_each(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        for text in texts:
            if _WHITE.search(text):
                raise InputError(
                    f"a text has more than {MOST_WHITE:,} white characters in a row, which tiktoken does not "
                    f"take; it begins with {text[:40]!r}: mend or remove it"
                )
        is_alone = os.environ.get("TOKENIZERS_PARALLELISM") == "false" or len(texts) == 1
        num_threads = 1 if is_alone else os.cpu_count() or 1
        found: list[list[int]] = self._encoding.encode_batch(
            list(texts), num_threads=num_threads, allowed_special=self._allowed, disallowed_special=()
        )
        return found

    def num_special(self, text: str) -> int:
        return len(self._special.findall(text))

    def text(self, ids: Sequence[int]) -> str:
        text: str = self._encoding.decode([number for number in ids if number in self._known])
        return text

    def ids_with_offsets(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        raise InputError("--chat: needs a tokenizer.json")


def _load(name: str, ranks: dict[bytes, int]) -> Any:
    encoding = name.removesuffix(".tiktoken")
    if encoding not in KNOWN:
        raise InputError(
            f"--tokenizer {name}: is a file of tiktoken, which does not say how it cuts words; known are "
            f"{', '.join(f'{one}.tiktoken' for one in KNOWN)}; of other models use the tokenizer.json"
        )
    try:
        import tiktoken
        from tiktoken_ext import openai_public
    except ImportError:
        raise InputError(
            f"--tokenizer {name}: needs the package tiktoken; install it, or use bytes"
        ) from None
    constructor = openai_public.ENCODING_CONSTRUCTORS[encoding]
    # The same function, for which loading is to take what was read here.
    offline = {**vars(openai_public), "load_tiktoken_bpe": lambda *_, **__: ranks}
    told: dict[str, Any] = FunctionType(constructor.__code__, offline)()
    special = told["special_tokens"]
    if clash := sorted(set(special.values()) & set(ranks.values())):
        raise InputError(
            f"--tokenizer {name}: has a token at {clash[0]:,}, a special token's id; fetch it again"
        )
    try:
        return tiktoken.Encoding(**told)
    except AssertionError:
        expected = told["explicit_n_vocab"] - len(special)
        raise InputError(
            f"--tokenizer {name}: has {len(ranks):,} tokens, expected {expected:,}; fetch it again"
        ) from None


def _ranks(name: str, content: bytes) -> dict[bytes, int]:
    if content.count(b"\n") > _MOST_TOKENS:
        raise InputError(f"--tokenizer {name}: has more than {_MOST_TOKENS:,} lines; fetch it again")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line:
            continue
        try:
            token, rank = line.split(b" ")
            ranks[binascii.a2b_base64(token, strict_mode=True)] = _rank(rank)
        except ValueError:
            raise InputError(
                f"--tokenizer {name}: line {number:,} is no token in base64 with its rank; fetch it again"
            ) from None
    num_lines = sum(1 for line in content.splitlines() if line)
    # The library breaks off at a byte that is no token.
    missing = next((byte for byte in range(256) if bytes([byte]) not in ranks), None)
    if missing is not None or len(ranks) < num_lines or len(set(ranks.values())) < num_lines or b"" in ranks:
        found = f"no token for byte {missing}" if missing is not None else "a token or a rank twice"
        raise InputError(f"--tokenizer {name}: is no whole file of tiktoken ({found}); fetch it again")
    return ranks


def _rank(text: bytes) -> int:
    if not text.isdigit() or len(text) > 9 or int(text) >= _MOST_TOKENS:
        raise ValueError
    return int(text)
