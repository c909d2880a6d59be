"""``python -m tests.security [TREE] [NAME...]``: runs the attacks on a tree.

Exit codes: 0 it held; 1 one got in; 2 wrong usage; 3 none got in, and some could not be tried here.
"""

import importlib
import sys
from pathlib import Path

from tests.security.attack import GotIn, NotTried

# By its number in the order of the first audit, and by what is attacked.
ATTACKS = {
    "rays_folder": "1",
    "rendezvous": "2",
    "rank_mailbox": "2",
    "token_cache": "4",
    "variables": "5",
    "rays_folder_of_files": "6",
    "link_in_store": "7",
    "units": "8",
    "bombs": "9",
    "poisoned_objects": "9",
    "ports": "-",
}
HELD, GOT_IN, NOT_TRIED = "held", "broken in", "not tried"


def main(tree: Path, names: list[str]) -> int:
    found = {name: tried(name, tree) for name in names or ATTACKS}
    if len(found) > 1:
        print("\n| number | attack | what came of it |\n|---|---|---|")
        for name, (what, _) in found.items():
            print(f"| {ATTACKS[name]} | {name} | {what} |")
    outcomes = {what for what, _ in found.values()}
    return 1 if GOT_IN in outcomes else 3 if NOT_TRIED in outcomes else 0


def tried(name: str, tree: Path) -> tuple[str, str]:
    """What came of it, and how; printed as one line."""
    try:
        what, how = HELD, importlib.import_module(f"tests.security.{name}").attack(tree)
    except GotIn as error:
        what, how = GOT_IN, str(error)
    except NotTried as error:
        what, how = NOT_TRIED, str(error)
    print(f"{name}: {what}: {how}", flush=True)
    return what, how


if __name__ == "__main__":
    words = sys.argv[1:]
    tree = Path(words.pop(0) if words and words[0] not in ATTACKS else ".").resolve()
    if not (tree / "jobs/cli").is_dir() or (unknown := set(words) - set(ATTACKS)):
        print(f"expected a checkout and names of attacks: {', '.join(ATTACKS)}", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(tree, words))
