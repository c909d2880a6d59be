"""``longhaul pack`` finds the input, cuts it and packs it, large input on all nodes; the index comes last."""

import argparse
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from checkpointing.stores.bounded import TooLarge, get_bounded
from checkpointing.stores.contract import Conflict, Missing, Store
from checkpointing.stores.opening import open_store
from jobs.commandline.exit_codes import EXIT_FAILED, EXIT_OK, EXIT_USAGE, OF_STORES, run_command
from jobs.commandline.output import printable
from jobs.commandline.store_location import store_base
from jobs.packing.chat.options import chat_counts, chat_facts, chat_recipe, told_of_chat
from jobs.packing.chat.recipe import ChatRecipe
from jobs.packing.files_table import counts_of_files, told_of_files
from jobs.packing.hold_out import HELD_OUT, HoldOut
from jobs.packing.inputs.splits import Wanted
from jobs.packing.inputs.standard_input import STANDARD_INPUT, with_standard_input
from jobs.packing.pieces import InputError, InputPiece, PackingFailed, cut_into_pieces
from jobs.packing.shard import Packed, dtype_for
from jobs.packing.sources import Given, SplitFiles, find_sources, in_split, left_out, named
from jobs.packing.tokenizing import TokenizerRecipe, read_recipe, tokenizer_file
from jobs.packing.work import Work, pack_here
from jobs.training.task.token_index import (
    INDEX,
    MOST_INDEX_BYTES,
    DataError,
    Split,
    TokenIndex,
    Vocabulary,
    from_json,
    to_json,
)
from reporting.analysis.formatting import counted


def pack(args: argparse.Namespace) -> int:
    """Packs the input into shards and an index.

    A killed packing leaves no index. A new one starts again from the beginning and gives the same bytes.
    """
    codes: dict[type[Exception], int] = {InputError: EXIT_USAGE, PackingFailed: EXIT_FAILED, **OF_STORES}
    return run_command("pack", lambda: _story(args), codes)


def _story(args: argparse.Namespace) -> int:
    args.tokenizer = tokenizer_file(args.tokenizer)
    chat = chat_recipe(args)
    args.column = args.column or ("messages" if chat else "text")
    store = open_store(args.out, base=store_base())
    recipe = read_recipe(
        args.tokenizer,
        args.end_token,
        needs_end=chat is None,
        reads_special=args.special_tokens,
    )
    if chat and recipe.content is not None and recipe.kind != "json":
        raise InputError(
            f"--tokenizer {args.tokenizer}: conversations need a tokenizer.json; name the model's"
        )
    if STANDARD_INPUT in args.inputs:
        # Before it is read, which may take hours and can't be repeated.
        _check_vacant(store, args.hold_out, _vocabulary(recipe, is_chat=chat is not None))
    with with_standard_input(args.inputs, args.rest) as inputs:
        wanted = Wanted(split=args.split, subset=args.subset)
        given = [in_split(one, wanted) for one in named(inputs)]
        return _packed_and_told(given, store, recipe, args, chat)


def _packed_and_told(
    inputs: Sequence[Given],
    store: Store,
    recipe: TokenizerRecipe,
    args: argparse.Namespace,
    chat: ChatRecipe | None,
) -> int:
    sources = find_sources(inputs, args.column, is_chat=chat is not None, rest=args.rest)
    ignored = [] if chat else left_out(inputs, args.column, args.rest)
    pieces, split = cut_into_pieces(sources), args.hold_out
    if not args.json and (sources or ignored):
        splits = [given.split for given in inputs if isinstance(given, SplitFiles)]
        print(printable(told_of_files(sources, ignored, splits)), flush=True)
        for name in dict.fromkeys(split.name for split in splits):
            print(f"of data sets with splits, {name} is packed\n", flush=True)
    if ignored and not pieces:
        raise InputError(
            f"{args.inputs[0]}: holds nothing that is known by its name, such as {ignored[0].name}; say by "
            "--as what is in it"
        )
    if not pieces:
        raise InputError(f"{args.inputs[0]}: holds no text; there is nothing to pack")
    _check_vacant(store, split, _vocabulary(recipe, is_chat=chat is not None))
    packed = _pack(pieces, recipe, store, args, chat)
    index = _index(packed, recipe, args, chat)
    held_out = [one.held_out for one in packed if one.held_out]
    if any(one.shard for one in held_out):
        # First: with the training's index the packing is done.
        _finish(store, _index(held_out, recipe, args, chat, is_held_out=True), f"{HELD_OUT}/{INDEX}")
    _finish(store, index, INDEX)
    facts = _facts(store, index, packed) | counts_of_files(sources, ignored)
    _tell(index, packed, facts, args)
    return EXIT_OK


def _check_vacant(store: Store, split: HoldOut | None, vocabulary: Vocabulary) -> None:
    store.probe()
    # A killed packing may have left the index of what is held out. Without --hold-out, these are trained on.
    for name in (INDEX,) if split else (INDEX, f"{HELD_OUT}/{INDEX}"):
        with suppress(Missing):
            store.size(name)
            raise InputError(
                f"--out {store.url}: holds packed tokens already; name another place, or delete {name}"
            )
    if split:
        _check_held_out(store, split, vocabulary)


def _check_held_out(store: Store, split: HoldOut, vocabulary: Vocabulary) -> None:
    name = f"{HELD_OUT}/{INDEX}"
    try:
        found = from_json(get_bounded(store, name, most_bytes=MOST_INDEX_BYTES), name)
    except Missing:
        return
    except (TooLarge, DataError):
        found = None
    if found and found.vocabulary != vocabulary:
        raise InputError(
            f"--out {store.url}: {HELD_OUT} was packed with another tokenizer, or begins its documents "
            f"otherwise; name another place, or delete {name}"
        )
    if not found or not found.split or found.split.share != split.share:
        raise InputError(
            f"--hold-out: another share was held out at {store.url}; give that one, name another place, or "
            f"delete {name}"
        )


def _pack(
    pieces: Sequence[InputPiece],
    recipe: TokenizerRecipe,
    store: Store,
    args: argparse.Namespace,
    chat: ChatRecipe | None,
) -> list[Packed]:
    work = Work(
        pieces=tuple(pieces),
        tokenizer=recipe,
        column=args.column,
        store=store.url,
        chat=chat,
        hold_out=args.hold_out,
    )
    # One piece is one worker's anyway: to start a Ray for it takes longer than to pack it.
    is_one = len(pieces) == 1 and not os.environ.get("RAY_ADDRESS")
    # What was read from standard input lies on this machine alone.
    if is_one or STANDARD_INPUT in args.inputs:
        return pack_here(work)
    from cluster.local_ray.private_ray import ray_for_driver

    with ray_for_driver(verbose=args.verbose):
        from jobs.packing.ray_pack import pack_pieces

        return pack_pieces(work, verbose=args.verbose)


def _index(
    packed: Sequence[Packed],
    recipe: TokenizerRecipe,
    args: argparse.Namespace,
    chat: ChatRecipe | None,
    *,
    is_held_out: bool = False,
) -> TokenIndex:
    shards = tuple(one.shard for one in packed if one.shard)
    if not shards and any(one.held_out and one.held_out.shard for one in packed):
        raise InputError("--hold-out: takes all documents; give more of them, or hold out less")
    if not shards:
        what = "conversation that is used" if chat else "text"
        raise InputError(f"{args.inputs[0]}: holds no {what}; there is nothing to pack")
    vocabulary = _vocabulary(recipe, is_chat=chat is not None)
    split = args.hold_out and Split.of(args.hold_out.share, is_held_out=is_held_out)
    if chat is None:
        dtype = dtype_for(vocabulary)
        return TokenIndex(dtype=dtype, shards=shards, vocabulary=vocabulary, split=split)
    facts = chat_facts(chat, sum(one.num_trained for one in packed))
    return TokenIndex(dtype="uint32", shards=shards, vocabulary=vocabulary, chat=facts, split=split)


def _vocabulary(recipe: TokenizerRecipe, *, is_chat: bool) -> Vocabulary:
    tokenizer = recipe.open()
    # A conversation begins as its template has it.
    begin_ids = None if is_chat else tuple(tokenizer.begin_ids)
    return replace(tokenizer.vocabulary, begin_ids=begin_ids)


def _is_another(store: Store, name: str, index: bytes) -> bool:
    return store.size(name) != len(index) or store.get(name) != index


def _finish(store: Store, index: TokenIndex, name: str) -> None:
    try:
        store.create(name, to_json(index))
    except Conflict:
        # Our own try whose answer was lost, a killed one, or another packing of the same input, may have
        # written it.
        if _is_another(store, name, to_json(index)):
            raise InputError(
                f"--out {store.url}: somebody has packed other tokens there meanwhile; name another place, "
                f"or delete {name}"
            ) from None


def _facts(store: Store, index: TokenIndex, packed: Sequence[Packed]) -> dict[str, Any]:
    assert index.vocabulary is not None
    return {
        "url": store.url,
        "num_documents": sum(one.num_documents for one in packed),
        "num_tokens": index.num_tokens,
        "num_shards": len(index.shards),
        "dtype": index.dtype,
        "tokenizer": index.vocabulary.tokenizer,
        "tokenizer_digest": index.vocabulary.digest,
        "vocab_size": index.vocabulary.size,
        "digest": index.digest,
        "num_special_tokens": sum(one.num_special for one in packed),
        "held_out": _facts_of_held_out(store, packed) if index.split else None,
        **(chat_counts(index.chat, packed) if index.chat else {}),
    }


def _facts_of_held_out(store: Store, packed: Sequence[Packed]) -> dict[str, Any]:
    held_out = [one.held_out for one in packed if one.held_out]
    shards = [one.shard for one in held_out if one.shard]
    return {
        "url": f"{store.url}/{HELD_OUT}" if shards else None,
        "num_documents": sum(one.num_documents for one in held_out),
        "num_tokens": sum(shard.num_tokens for shard in shards),
        "num_special_tokens": sum(one.num_special for one in held_out),
    }


def _tell(
    index: TokenIndex, packed: Sequence[Packed], facts: dict[str, Any], args: argparse.Namespace
) -> None:
    if args.json:
        print(json.dumps(facts, indent=1))
        return
    kind = "conversation" if index.chat else "document"
    print(
        f"{counted(facts['num_documents'], kind)}, {counted(facts['num_tokens'], 'token')} of "
        f"{facts['tokenizer']} (vocabulary {facts['vocab_size']:,}) in "
        f"{counted(facts['num_shards'], 'shard')}: {facts['url']}"
    )
    if index.chat:
        print(told_of_chat(index.chat, packed))
    held_out = facts["held_out"]
    if num_special := facts["num_special_tokens"] + (held_out["num_special_tokens"] if held_out else 0):
        became = "became them" if args.special_tokens else "stayed text (--special-tokens)"
        print(f"{num_special:,} times the text spells special tokens of the tokenizer, which {became}")
    print(f"train on them with data: {{kind: tokens, path: {facts['url']}}}")
    if held_out:
        documents = counted(held_out["num_documents"], kind)
        print(f"held out: {documents}, {counted(held_out['num_tokens'], 'token')}")
        if held_out["url"]:
            print(f"evaluate on them with eval: {{path: {held_out['url']}}}")
