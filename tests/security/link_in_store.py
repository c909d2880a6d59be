"""Attack 7: a link in the store leads ``gc`` to another's folder, whose files it deletes."""

import shutil
from pathlib import Path

from tests.security.attack import Done, GotIn, NotTried, Product, own, product

_RUN = """\
name: m
model: llama-tiny
strategy: ddp
world_size: 1
seq_len: 32
steps: 3
data: {samples: 64}
checkpoint: {every_steps: 1}
"""


def attack(tree: Path) -> str:
    with product(tree) as its:
        store, spec = its.home / "store", its.home / "spec.yaml"
        spec.write_text(_RUN, encoding="utf-8")
        for num_steps in (3, 4):
            train = ("train", spec, "--executor", "inline", "--store", store, "--set", f"steps={num_steps}")
            if (done := its.run(*train)).code != 0:
                raise NotTried(f"no run to attack: {done.last_line}")
            if num_steps == 3:
                theirs = _as_of_a_crashed_attempt(store / "runs/m/gen", its.home / "theirs")
        own(theirs, its.user)
        _check_that_it_deletes_what_lies_there(its, store, theirs)
        before = set(theirs.rglob("*"))
        said = []
        for place in ("runs/m/gen", f"runs/m/gen/{next(theirs.iterdir()).name}"):
            linked = its.home / "linked"
            shutil.copytree(store, linked)
            shutil.rmtree(linked / place, ignore_errors=True)
            leads_to = theirs if place.endswith("gen") else next(theirs.iterdir())
            (linked / place).symlink_to(leads_to)
            own(linked, its.user)
            said.append(_collect(its, linked).last_line)
            if gone := before - set(theirs.rglob("*")):
                raise GotIn(
                    f"{place} is a link: `checkpoints gc` deleted {len(gone)} files where it leads to"
                )
            shutil.rmtree(linked)
        return f"nothing is deleted where a link leads to: {said[0]}"


def _as_of_a_crashed_attempt(generations: Path, folder: Path) -> Path:
    """Copies whose names no log has. Half of them are whole, the others have no manifest."""
    for number, path in enumerate(sorted(generations.iterdir())):
        copy = folder / f"{path.name.rpartition('-')[0]}-0123456789ab{number:04d}"
        shutil.copytree(path, copy)
        if number % 2:
            for manifest in copy.glob("manifest*"):
                manifest.unlink()
    return folder


def _check_that_it_deletes_what_lies_there(its: Product, store: Path, theirs: Path) -> None:
    """Else it would spare them for another reason than the link."""
    plain = its.home / "plain"
    shutil.copytree(store, plain)
    shutil.copytree(theirs, plain / "runs/m/gen", dirs_exist_ok=True)
    own(plain, its.user)
    done = _collect(its, plain)
    left = [name for name in theirs.iterdir() if any((plain / "runs/m/gen" / name.name).rglob("*"))]
    if left:
        raise NotTried(f"`gc` spares {len(left)} of them without a link too: {done.last_line}")


def _collect(its: Product, store: Path) -> Done:
    """With all that this tree's ``gc`` can be told to delete."""
    collect = ("checkpoints", "gc", "--run", "m", "--store", store, "--yes")
    done = its.run(*collect, "--unnamed")
    return its.run(*collect) if "unrecognized arguments" in done.said else done
