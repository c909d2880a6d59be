"""Tells what a tokenizer's file is, by its name, and where that is not enough by its first line. Pure."""

import re
from pathlib import Path
from typing import Literal

TokenizerKind = Literal["json", "sentencepiece", "tiktoken"]
# In the order in which they are looked for in a folder.
NAMES = ("tokenizer.json", "tokenizer.model")
# A token in base64 and its rank. Models such as Llama 3 have such a file under sentencepiece's usual name.
_RANKED = re.compile(rb"[A-Za-z0-9+/]{2,}={0,2} [0-9]+\r?(\n|$)")


def kind_of(path: Path, content: bytes) -> TokenizerKind:
    if path.suffix == ".tiktoken" or (path.suffix == ".model" and _RANKED.match(content)):
        return "tiktoken"
    return "sentencepiece" if path.suffix == ".model" else "json"


def file_in(folder: Path) -> Path:
    """The tokenizer's file in a folder, such as a downloaded model's. It may not be there."""
    names = [name for name in NAMES if (folder / name).is_file()]
    if not names:
        names = sorted(path.name for path in folder.glob("*.tiktoken"))[:1]
    return folder / (names[0] if names else NAMES[0])
