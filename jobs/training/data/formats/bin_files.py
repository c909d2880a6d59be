"""Describes files of ids that other tools wrote, so that they are read in place: nanoGPT's ``.bin`` and
Megatron's ``.bin`` with its ``.idx``.

Both are the ids of all documents one behind another. What ends a document no such file says. Only headers and
lengths are read here, a megabyte at a time.
"""

import struct
from array import array
from collections.abc import Mapping

from checkpointing.stores.contract import Missing
from jobs.training.data.shards import Copyable
from jobs.training.task.token_index import DTYPE_BYTES, DataError, TokenDtype, TokenIndex, TokenShard

BIN, IDX = ".bin", ".idx"
_READ_BYTES = 2**20
# Their lengths are read in half a minute.
_MOST_SEQUENCES = 2**28
# Megatron's index: magic, version, code of the dtype, numbers of sequences and of documents. Behind these the
# length of each sequence (int32), its first byte in the .bin (int64), and where each document begins (int64).
_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES: Mapping[int, TokenDtype] = {4: "uint32", 8: "uint16"}
_KINDS = {1: "uint8", 2: "int8", 3: "int16", 5: "int64", 6: "float64", 7: "float32"}
# What llm.c and its descendants write before the ids: 256 numbers, of which this is the first. That of its
# Llama 3 stands before ids of uint32.
_OF_LLM_C = [struct.pack("<I", magic) for magic in (20240520, 20240801)]


def index_of_bin(store: Copyable, name: str) -> TokenIndex:
    """The index of one file, ``name``, with or without its ending. Its dtype is what ``.idx`` says, and
    without such a file it is nanoGPT's, uint16. Raises ``Missing`` if there is no such file.

    Ids of int32 are read as uint32: a negative one is beyond every vocabulary.
    """
    stem = name.removesuffix(IDX if name.endswith(IDX) else BIN)
    num_bytes = store.size(stem + BIN)
    try:
        dtype, num_tokens = _megatron(store, stem + IDX, num_bytes)
    except Missing:
        if name.endswith(IDX):
            raise
        dtype, num_tokens = "uint16", _nano_gpt(store, stem + BIN, num_bytes)
    where, expected = f"data: {store.url}/{stem}{BIN}", num_tokens * DTYPE_BYTES[dtype]
    if num_bytes != expected:
        raise DataError(
            f"{where}: has {num_bytes:,} bytes, but by {stem}{IDX} {expected:,} ({num_tokens:,} tokens of "
            f"{dtype}); copy both again"
        )
    return TokenIndex(dtype=dtype, shards=(TokenShard(name=stem + BIN, num_tokens=num_tokens),))


def _nano_gpt(store: Copyable, name: str, num_bytes: int) -> int:
    where = f"data: {store.url}/{name}"
    if _read(store, name, 0, 4) in _OF_LLM_C:
        raise DataError(
            f"{where}: begins with the header of llm.c; expected ids of uint16 alone: cut off 1,024 bytes, "
            "or pack the text if its ids are uint32"
        )
    if num_bytes % DTYPE_BYTES["uint16"]:
        raise DataError(
            f"{where}: has {num_bytes:,} bytes, which is no number of uint16; copy it again, or bring "
            f"its {IDX}"
        )
    return num_bytes // DTYPE_BYTES["uint16"]


def _megatron(store: Copyable, name: str, bin_bytes: int) -> tuple[TokenDtype, int]:
    """The dtype, and how many tokens all sequences have together, for a ``.bin`` of ``bin_bytes``."""
    where, num_bytes = f"data: {store.url}/{name}", store.size(name)
    head = _read(store, name, 0, _HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise DataError(f"{where}: is no index of Megatron's; make it again, or take it away")
    _, version, code, num_sequences, num_documents = _HEADER.unpack(head)
    if version != 1 or code not in _DTYPES:
        found = f"version {version} of {_KINDS.get(code, f'dtype {code}')}"
        raise DataError(f"{where}: is {found}, expected version 1 of int32 or uint16; pack the text instead")
    expected = _HEADER.size + 12 * num_sequences + 8 * num_documents
    if num_bytes != expected:
        raise DataError(
            f"{where}: has {num_bytes:,} bytes, expected {expected:,} for {num_sequences:,} sequences in "
            f"{num_documents:,} documents; copy it again (data with images can't be read)"
        )
    # Sequences without a token are rare. So a small file with a large hole costs nothing.
    most = min(_MOST_SEQUENCES, bin_bytes // DTYPE_BYTES[_DTYPES[code]])
    if num_sequences > most:
        raise DataError(
            f"{where}: tells of {num_sequences:,} sequences, expected at most {most:,} beside a {BIN} of "
            f"{bin_bytes:,} bytes; copy both again, or pack the text"
        )
    num_tokens, end = 0, _HEADER.size + 4 * num_sequences
    for at in range(_HEADER.size, end, _READ_BYTES):
        part = _read(store, name, at, min(_READ_BYTES, end - at))
        if len(part) < min(_READ_BYTES, end - at):
            raise DataError(f"{where}: was cut short while it was read; copy it again")
        lengths = array("i", part)
        if min(lengths) < 0:
            raise DataError(f"{where}: has a sequence of {min(lengths):,} tokens; copy it again")
        num_tokens += sum(lengths)
    return _DTYPES[code], num_tokens


def _read(store: Copyable, name: str, start: int, num_bytes: int) -> bytes:
    room = memoryview(bytearray(num_bytes))
    return bytes(room[: store.get_range(name, start, room)])
