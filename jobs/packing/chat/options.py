"""What a user asks for of chat data, and what is told of it."""

import argparse
import hashlib
from collections.abc import Sequence

from jobs.packing.chat.recipe import ChatRecipe
from jobs.packing.chat.template_file import read_template
from jobs.packing.pieces import InputError
from jobs.packing.shard import Packed
from jobs.training.task.token_index import Chat

_SHORTEST = 2


def chat_recipe(args: argparse.Namespace) -> ChatRecipe | None:
    """None without ``--chat``. Raises ``InputError`` if flags don't go together or the template is none."""
    if not args.chat:
        flags = {"--chat-template": args.chat_template, "--seq-len": args.seq_len}
        if given := [flag for flag, value in flags.items() if value is not None]:
            raise InputError(f"{given[0]}: is for conversations; add --chat, or leave it out")
        return None
    if args.end_token is not None:
        raise InputError("--end-token: a chat template writes its own ends; leave it out, or --chat")
    if args.seq_len is None or args.seq_len < _SHORTEST:
        raise InputError(
            f"--chat: needs --seq-len, the tokens of a row, at least {_SHORTEST}; give the training's seq_len"
        )
    from jobs.packing.chat.sandbox import Template

    template = read_template(args.tokenizer, args.chat_template)
    Template(template)
    return ChatRecipe(template=template, seq_len=args.seq_len, too_long=args.too_long)


def chat_facts(recipe: ChatRecipe, num_trained: int) -> Chat:
    digest = hashlib.sha256(recipe.template.text.encode(errors="replace")).hexdigest()
    return Chat(seq_len=recipe.seq_len, num_trained=num_trained, template=digest)


def chat_counts(chat: Chat, packed: Sequence[Packed]) -> dict[str, int]:
    return {
        "seq_len": chat.seq_len,
        "num_trained_tokens": chat.num_trained,
        "num_cut": sum(one.num_cut for one in packed),
        "num_left_out": sum(one.num_left_out for one in packed),
    }


def told_of_chat(chat: Chat, packed: Sequence[Packed]) -> str:
    counts = chat_counts(chat, packed)
    return (
        f"{chat.num_trained:,} of these tokens are an assistant's; rows of {chat.seq_len:,} tokens; "
        f"{counts['num_cut']:,} conversations were cut, {counts['num_left_out']:,} left out"
    )
