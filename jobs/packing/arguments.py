"""Defines the flags of ``longhaul pack``. Pure: ``--help`` is instant."""

import argparse
from pathlib import Path
from typing import get_args

from jobs.packing.chat.recipe import TooLong
from jobs.packing.hold_out import HoldOut, as_hold_out
from jobs.packing.inputs.standard_input import STANDARD_INPUT
from jobs.packing.pieces import SourceKind


def add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Turn text, JSON, CSV, Parquet and Arrow into token shards for `data: {kind: tokens, path: URL}`. "
        "The same input and tokenizer give the same bytes. With --chat, conversations become rows of "
        "--seq-len tokens, of which only an assistant's words are trained on."
    )
    parser.epilog = "exit codes: 0 packed; 1 the store failed; 2 wrong usage or input; 130 interrupted"
    parser.add_argument(
        "inputs",
        nargs="+",
        type=_input,
        metavar="INPUT",
        help="a file, a pattern such as 'data/*.jsonl', or a folder with all below it, also at s3://, gs:// "
        "or az://: .txt, .jsonl, .json, .csv (each also .gz or .zst), .parquet and .arrow; others only with "
        "--as, and so is standard input, which is -",
    )
    parser.add_argument("--out", required=True, metavar="URL", help="a folder or a place in object storage")
    parser.add_argument(
        "--tokenizer",
        default="bytes",
        metavar="FILE",
        help="a Hugging Face tokenizer.json, sentencepiece's tokenizer.model, a cl100k_base.tiktoken or "
        "the like, or a folder with one (default: bytes, the bytes of UTF-8)",
    )
    parser.add_argument(
        "--end-token",
        metavar="TOKEN",
        help="stands behind each document (default: the tokenizer's, if it has a usual one)",
    )
    parser.add_argument(
        "--column",
        metavar="NAME",
        help="where files have their text (text), or with --chat their messages (messages)",
    )
    parser.add_argument(
        "--as",
        dest="rest",
        choices=get_args(SourceKind),
        help="what is in files of other names (such files in folders are left out)",
    )
    parser.add_argument(
        "--split",
        metavar="NAME",
        help="the split of a downloaded Hugging Face data set (train, or the only one)",
    )
    parser.add_argument(
        "--subset", metavar="NAME", help="the subset (config_name) of a data set that has several"
    )
    parser.add_argument(
        "--special-tokens",
        action="store_true",
        help="a text that spells a special token, such as <|endoftext|>, becomes it (it stays text)",
    )
    parser.add_argument(
        "--hold-out",
        type=_hold_out,
        metavar="SHARE",
        help="a share of the documents, such as 0.5%%, goes to URL/held-out for `eval: {path: ...}`; which, "
        "their text alone decides",
    )
    parser.add_argument(
        "--chat", action="store_true", help="the input are conversations, in JSON, Parquet or Arrow"
    )
    parser.add_argument(
        "--chat-template",
        metavar="FILE",
        help="a Jinja file, or chatml (default: what stands beside the tokenizer)",
    )
    parser.add_argument(
        "--seq-len", type=int, metavar="N", help="the tokens of a row: seq_len of the training"
    )
    parser.add_argument(
        "--too-long",
        choices=get_args(TooLong),
        default="refuse",
        help="what becomes of a conversation that has more tokens than a row (refuse)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.add_argument("-v", "--verbose", action="store_true", help="let Ray's own log through")


def _input(text: str) -> Path | str:
    return text if "://" in text or text == STANDARD_INPUT else Path(text)


def _hold_out(text: str) -> HoldOut:
    try:
        return as_hold_out(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
