"""Tells which files of a downloaded Hugging Face data set are which split, by what lies beside them.

That is, first come: ``dataset_dict.json`` or ``state.json`` of ``save_to_disk``; ``configs`` at the top of
README.md; the names of splits in ``dataset_info`` there, in ``dataset_info.json`` or ``dataset_infos.json``,
which are then looked for in the names of files.

All of it is a stranger's. Patterns are held against the names of files that were found already, so that none
leads out of the folder.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from checkpointing.stores.bounded import excess_of
from cluster.yaml_file import YamlError, parse_yaml
from jobs.packing.inputs.patterns import fits
from jobs.packing.pieces import InputError, Split

TELLING = (
    "README.md", "dataset_info.json", "dataset_infos.json", "state.json", "dataset_dict.json",
)  # fmt: skip
README, INFO, INFOS, STATE, DICT = TELLING
DEFAULT_SPLIT = "train"
MOST_BYTES = 16 * 2**20
_MOST_README_BYTES = 2**20
_MOST_PATTERNS = 1_000
# Each pattern is held against the name of each file.
_MOST_PATH = 1_000
_MOST_SPLITS = 100
_NAME = re.compile(r"\w+(\.\w+)*", re.ASCII)
_BEGIN = re.compile(r"\ufeff?---[ \t]*\r?\n")
_FRONT = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)
_OF_DATA = re.compile("^(configs|dataset_info)[ \t]*:", re.MULTILINE)
# The words by which ``datasets`` knows its usual splits.
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}

Patterns = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a user wants of a data set: the split and the subset, or None."""

    split: str | None = None
    subset: str | None = None


def split_of(
    folder: str, names: Sequence[str], read: Callable[[str, int], bytes], wanted: Wanted
) -> Split | None:
    """The split that is wanted, by default ``train``. None if nothing tells of splits.

    ``names`` are relative to the folder. ``read`` gives a file's first bytes. Raises ``InputError`` if there
    is no such split, and where it is not certain which files are.
    """
    told = _told(folder, frozenset(names), read, wanted)
    if told is None:
        if wanted.split or wanted.subset:
            flag = f"--split {wanted.split}" if wanted.split else f"--subset {wanted.subset}"
            raise InputError(f"{flag}: nothing in {folder} tells of splits; name the files that are meant")
        return None
    where, patterns = told
    splits = {split: _fitting(each, names) for split, each in patterns.items()}
    split = _chosen(where, splits, wanted.split)
    if not splits[split]:
        raise InputError(f"{where}: no file of split {split!r} is there; fetch the rest of the data set")
    others = {other: len(files) for other, files in splits.items() if other != split}
    return Split(name=split, files=splits[split], others=others)


def _chosen(where: str, splits: Mapping[str, object], wanted: str | None) -> str:
    split = wanted or (DEFAULT_SPLIT if DEFAULT_SPLIT in splits or len(splits) > 1 else next(iter(splits)))
    if split not in splits:
        found = f"{', '.join(splits):.200}"
        raise InputError(f"--split: {where} has no split {split!r} ({found}); name one of these")
    return split


def _told(
    folder: str, names: frozenset[str], read: Callable[[str, int], bytes], wanted: Wanted
) -> tuple[str, Patterns] | None:
    """What tells of splits, and the patterns of each."""

    def document(name: str) -> Any:
        return _document(f"{folder}/{name}", read(name, MOST_BYTES))

    if DICT in names:
        found: Patterns = {
            split: [f"{split}/{file}" for file in _saved(f"{folder}/{split}/{STATE}", document, split)]
            for split in _names(f"{folder}/{DICT}", _object(document(DICT)).get("splits"))
            if f"{split}/{STATE}" in names
        }
        return f"{folder}/{DICT}", found or _refuse(f"{folder}/{DICT}", "names no split that is there")
    if STATE in names:
        split = _object(document(STATE)).get("_split") or DEFAULT_SPLIT
        [name] = _names(f"{folder}/{STATE}", [split])
        return f"{folder}/{STATE}", {name: _saved(f"{folder}/{STATE}", document, "")}
    card = _card(f"{folder}/{README}", read(README, _MOST_README_BYTES)) if README in names else {}
    if configs := card.get("configs"):
        where = f"{folder}/{README}"
        config = _subset(where, _by_name(where, configs), wanted.subset)
        if "data_files" in config:
            return where, _patterns(where, config)
        if "data_dir" in config:
            _refuse(where, "has a data_dir without data_files, which is not read")
    infos, source = card.get("dataset_info"), README
    if infos is None and INFOS in names:
        infos, source = document(INFOS), INFOS
    if infos is None and INFO in names:
        infos, source = document(INFO), INFO
    if infos is None:
        return None
    where = f"{folder}/{source}"
    return where, _by_words(where, infos, names, wanted.subset)


def _document(where: str, data: bytes) -> Any:
    if len(data) > MOST_BYTES or excess_of(data, most_values=2**20):
        _refuse(where, f"is too large: at most {MOST_BYTES:,} bytes with a million values are read")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        _refuse(where, f"is not JSON ({error!s:.100})")


def _card(where: str, data: bytes) -> dict[str, Any]:
    """What stands at the top of README.md, if that is of data."""
    text = data.decode(errors="replace")
    front = _FRONT.match(text)
    if front is None and len(data) > _MOST_README_BYTES and _BEGIN.match(text) and _OF_DATA.search(text):
        _refuse(where, f"has no end of its YAML in the first {_MOST_README_BYTES:,} bytes")
    if front is None or not _OF_DATA.search(front[1]):
        return {}
    try:
        return _object(parse_yaml(front[1]))
    except YamlError as error:
        _refuse(where, f"is not YAML at its top: {error!s:.100}")


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _by_name(where: str, configs: Any) -> dict[str, dict[str, Any]]:
    found = configs if isinstance(configs, list) else [configs]
    if not all(isinstance(one, dict) for one in found):
        _refuse(where, "expected a list of objects with config_name and data_files under configs")
    return {str(one.get("config_name", "default")): one for one in found}


def _subset(where: str, subsets: Mapping[str, Any], wanted: str | None) -> dict[str, Any]:
    defaults = [name for name, one in subsets.items() if _object(one).get("default") is True]
    usual = [*defaults, *(name for name in subsets if name == "default" or len(subsets) == 1)]
    name = wanted or next(iter(usual), None)
    if name is None or name not in subsets:
        is_unknown = f"has no subset {wanted!r:.50}" if wanted else "has several subsets"
        raise InputError(f"--subset: {where} {is_unknown} ({', '.join(subsets):.200}); name one of these")
    return _object(subsets[name])


def _patterns(where: str, config: dict[str, Any]) -> Patterns:
    """The patterns of each split in ``data_files``, which has one of four forms."""
    given = config["data_files"]
    if isinstance(given, dict):
        given = [{"split": split, "path": path} for split, path in given.items()]
    entries = given if isinstance(given, list) else [given]
    patterns: dict[str, list[str]] = {}
    for entry in entries:
        one = entry if isinstance(entry, dict) else {"split": DEFAULT_SPLIT, "path": entry}
        split: Any = one.get("split")
        _names(where, [split])
        paths: Any = one.get("path")
        patterns.setdefault(split, []).extend(paths if isinstance(paths, list) else [paths])
    folder = config.get("data_dir")
    inside = {
        split: [_inside(where, path if folder is None else f"{folder}/{path}") for path in paths]
        for split, paths in patterns.items()
    }
    if not inside or sum(map(len, inside.values())) > _MOST_PATTERNS:
        _refuse(where, f"expected from one to {_MOST_PATTERNS:,} paths under data_files")
    return inside


def _inside(where: str, path: Any) -> str:
    if not isinstance(path, str) or not path.strip("/") or len(path) > _MOST_PATH:
        _refuse(where, f"expected a path under data_files, found {path!r:.50}")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in parts or "://" in path or "\\" in path:
        _refuse(where, f"data_files has {path!r:.80}, which leads out of the folder")
    return "/".join(parts)


def _names(where: str, given: Any) -> list[str]:
    names = list(given) if isinstance(given, list | dict) else [given]
    if len(names) > _MOST_SPLITS:
        _refuse(where, f"has {len(names):,} splits, expected at most {_MOST_SPLITS:,}")
    for name in names:
        if not isinstance(name, str) or len(name) > 100 or not _NAME.fullmatch(name):
            _refuse(where, f"expected the name of a split, found {name!r:.50}")
    return names


def _saved(where: str, document: Callable[[str], Any], split: str) -> list[str]:
    """The files of a data set that ``save_to_disk`` wrote."""
    state = _object(document(f"{split}/{STATE}" if split else STATE))
    if state.get("_indices_data_files") or state.get("_indices_files"):
        _refuse(where, "has rows that were selected and not written; save it again with a newer datasets")
    files = state.get("_data_files")
    found = [_object(one).get("filename") for one in files] if isinstance(files, list) else []
    if not found:
        _refuse(where, "expected file names under _data_files")
    return [_inside(where, name) for name in found]


def _by_words(where: str, infos: Any, names: frozenset[str], wanted: str | None) -> Patterns:
    """The files of each split, by words in their names."""
    subset: dict[str, Any] = _object(infos)
    if isinstance(infos, list) or "splits" not in subset:
        subsets = _by_name(where, infos) if isinstance(infos, list) else subset
        # YAML has names that are numbers.
        subsets = {str(name): one for name, one in subsets.items()}
        subset = _subset(where, subsets, wanted)
        below = [name for name in names if wanted is not None and wanted in name.split("/")[:-1]]
        names = frozenset(below) or names
    splits = subset.get("splits")
    if isinstance(splits, list):
        splits = [_object(one).get("name") for one in splits]
    found: dict[str, list[str]] = {split: [] for split in _names(where, splits or [])}
    if not found:
        _refuse(where, "expected the names of splits under splits")
    rest = [name for name in names if name not in (README, INFO, INFOS)]
    forms = {split: _forms(split) for split in found}
    for name in rest:
        if split := _split_in(where, name, forms):
            found[split].append(name)
    if not any(found.values()):
        found[_chosen(where, found, None)] = rest
    return found


def _forms(split: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Names whose last word is the split, and names or folders with the split as a word."""
    word = f"(?:{'|'.join(map(re.escape, _WORDS.get(split, (split,))))})"
    last = rf"(?:.*[-._/])?{word}(?:-[0-9]{{5}}-of-[0-9]{{5}})?\.[^/]*"
    return re.compile(last, re.DOTALL), re.compile(f"(?:.*[-._ 0-9/])?{word}[-._ 0-9/].*", re.DOTALL)


def _split_in(where: str, name: str, forms: Mapping[str, Sequence[re.Pattern[str]]]) -> str | None:
    """The split that a file's name tells, if any."""
    for number in range(2):
        fits = [split for split, each in forms.items() if each[number].fullmatch(name)]
        if len(fits) > 1:
            _refuse(where, f"{name!r:.80} may be of the splits {', '.join(fits)}")
        if fits:
            return fits[0]
    return None


def _fitting(patterns: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    plain = set(patterns)
    wild = [pattern.split("/") for pattern in plain if any(mark in pattern for mark in "*?[")]
    return tuple(name for name in names if name in plain or any(fits(one, name.split("/")) for one in wild))


def _refuse(where: str, what: str) -> NoReturn:
    raise InputError(f"{where}: {what}; mend it, or name the files that are meant")
