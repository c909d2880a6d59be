"""Finds the objects that a URL names: one, all below a folder, or those that fit a pattern."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from checkpointing.stores.contract import Missing, StoreError, is_name
from checkpointing.stores.retrying import RetryLimits
from checkpointing.stores.transfers import side_by_side
from checkpointing.stores.versions import Look, look_at_all, versions_of
from jobs.packing.formats.objects import as_problem, store_at
from jobs.packing.inputs.patterns import fits
from jobs.packing.pieces import InputError, StoredObject

WILD = "*?["
_URL = re.compile(r"(file:///|[^/]+://[^/]*)/?(.*)", re.DOTALL)
# How many objects are looked at side by side.
_AT_ONCE = 16
_MOST_SHOWN = 1_000
# Somebody waits for the answer, and an address may be wrong.
_SHORT = RetryLimits(budget_s=30, is_from_start=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFolder:
    """The objects below a folder of a store, sorted by path, without hidden ones."""

    url: str
    objects: tuple[StoredObject, ...]

    def __str__(self) -> str:
        return self.url


def find_objects(url: str) -> list[StoredObject | StoredFolder]:
    """Finds what the URL names. Raises ``InputError`` if that is nothing, or can't be read from a store."""
    parts = _URL.fullmatch(url)
    if parts is None:
        raise InputError("input: expected a URL of a store, such as s3://bucket/folder")
    root, *names = parts[1], *(name for name in parts[2].split("/") if name)
    for number, name in enumerate(names):
        if any(mark in name for mark in WILD):
            return _fitting(url, _joined(root, names[:number]), names[number:])
        if not is_name(name):
            raise name_refusal(url)
    if names and not url.endswith("/") and (found := _looked(_joined(root, names[:-1]), names[-1])):
        return [found]
    folder = _joined(root, names)
    below = _below(folder)
    if not below:
        raise InputError(f"{url}: does not exist, or holds no files; give an object, a folder or a pattern")
    return [StoredFolder(url=folder, objects=tuple(_all_looked(folder, below)))]


def name_refusal(url: object) -> InputError:
    # A listing may have a name of any length.
    shown = str(url) if len(str(url)) < _MOST_SHOWN else f"{str(url)[:_MOST_SHOWN]}..."
    return InputError(
        f"{shown}: a name with other characters than letters, digits and ._+=@- is not read from a store; "
        "rename the object, or copy it to this machine"
    )


def _fitting(url: str, store: str, pattern: list[str]) -> list[StoredObject | StoredFolder]:
    """What fits, sorted by name as a shell does; of folders that fit, all that is below."""
    listed, below = _below(store), dict[str, list[str]]()
    for name in listed:
        parts = name.split("/")
        ways = (parts[:number] for number in range(1, len(parts) + 1))
        if way := next((way for way in ways if fits(pattern, way)), None):
            below.setdefault("/".join(way), []).append(name)
    chosen = {name: listed[name] for names in below.values() for name in names}
    looked = {found.name: found for found in _all_looked(store, chosen)}
    fitting: list[StoredObject | StoredFolder] = []
    for fit, names in sorted(below.items()):
        objects = tuple(looked[name] for name in names if name in looked)
        folder = StoredFolder(url=_joined(store, [fit]), objects=objects)
        fitting += objects if names == [fit] else [folder]
    if not fitting:
        raise InputError(f"{url}: fits no file; give an object, a folder or another pattern")
    return fitting


def _below(url: str) -> dict[str, Look | None]:
    """All objects below a folder, sorted by path and without hidden ones, with what the listing tells."""
    store = store_at(url, _SHORT)
    try:
        listed = look_at_all(store)
    except StoreError as error:
        raise as_problem(error, store, "", url) from None
    names = [name for name in listed if not any(map(_is_hidden, name.split("/")))]
    return {name: listed[name] for name in sorted(names, key=lambda name: name.split("/"))}


def _is_hidden(name: str) -> bool:
    return name.startswith(".")


def _all_looked(url: str, listed: Mapping[str, Look | None]) -> list[StoredObject]:
    # What the listing has and nobody finds is an empty object that stands for a folder.
    looked = side_by_side(lambda told: _looked(url, *told), [*listed.items()], at_once=_AT_ONCE)
    return [found for found in looked if found]


def _looked(url: str, name: str, look: Look | None = None) -> StoredObject | None:
    if not is_name(name):
        # It may be of a kind that is left out. Who would read it refuses it.
        return StoredObject(store=url, name=name, num_bytes=0, version=None)
    store = store_at(url, _SHORT)
    try:
        num_bytes, version = look or versions_of(store).look(name)
    except Missing:
        return None
    except StoreError as error:
        raise as_problem(error, store, name, _joined(url, [name])) from None
    return StoredObject(store=url, name=name, num_bytes=num_bytes, version=version)


def _joined(url: str, names: list[str]) -> str:
    return "/".join([url.removesuffix("/"), *names]) if names else url
