"""A model of sentencepiece, such as ``tokenizer.model``."""

import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from jobs.packing.pieces import InputError
from jobs.training.task.token_index import Vocabulary


class SentencePieceTokenizer:
    """Gives the library's own ids. No text becomes a control symbol, such as ``</s>``."""

    def __init__(self, name: str, content: bytes, end_token: str | None, *, needs_end: bool) -> None:
        self._processor = _load(name, content)
        num_pieces = self._processor.piece_size()
        # Whether there is to be one before a text no such file says.
        self.begin_ids: Sequence[int] = ()
        self.end_id = self._end_id(name, end_token)
        if self.end_id is None and needs_end:
            raise InputError(f"--tokenizer {name}: has no end of its own; name a token with --end-token")
        self.vocabulary = Vocabulary(
            tokenizer=name,
            digest=hashlib.sha256(content).hexdigest(),
            size=num_pieces,
            end_id=self.end_id,
        )
        control = [number for number in range(num_pieces) if self._processor.is_control(number)]
        spelled = sorted(map(self._processor.id_to_piece, control), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, spelled))) if spelled else None

    def ids(self, text: str) -> Sequence[int]:
        ids: Sequence[int] = self._processor.encode(text, out_type=int)
        return ids

    def ids_of_each(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        is_alone = os.environ.get("TOKENIZERS_PARALLELISM") == "false"
        ids: Iterable[Sequence[int]] = self._processor.encode(
            list(texts), out_type=int, num_threads=1 if is_alone else -1
        )
        return ids

    def num_special(self, text: str) -> int:
        return len(self._special.findall(text)) if self._special else 0

    def text(self, ids: Sequence[int]) -> str:
        text: str = self._processor.decode([number for number in ids if number < self.vocabulary.size])
        return text

    def ids_with_offsets(self, text: str) -> tuple[Sequence[int], Sequence[tuple[int, int]]]:
        raise InputError("--chat: needs a tokenizer.json")

    def _end_id(self, name: str, end_token: str | None) -> int | None:
        if end_token is None:
            end_id = int(self._processor.eos_id())
            return end_id if end_id >= 0 else None
        found = int(self._processor.piece_to_id(end_token))
        if self._processor.id_to_piece(found) != end_token:
            raise InputError(f"--end-token {end_token}: {name} has no such token")
        return found


def _load(name: str, content: bytes) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise InputError(
            f"--tokenizer {name}: needs the package sentencepiece; install it, or use bytes"
        ) from None
    try:
        # It takes an empty file for no file.
        processor = SentencePieceProcessor(model_proto=content or b"\0")
        processor.encode("a")
    except Exception as error:  # the library raises RuntimeError, and others of C++ by chance
        told = str(error).strip().rpartition("/")[2] or type(error).__name__
        raise InputError(
            f"--tokenizer {name}: is no whole model of sentencepiece ({told:.80}); fetch it again"
        ) from None
    return processor
