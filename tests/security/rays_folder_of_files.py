"""Attack 6: another user replaces the code of jobs in the folder of a Ray that our files start."""

from pathlib import Path

from tests.security.attack import GotIn, NotTried, as_stranger, product
from tests.security.ray_stand_in import Started, starts

_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x" * 64}


def attack(tree: Path) -> str:
    with product(tree) as its, starts(its, **_TOKEN) as found:
        if not all((one.folder / "code_of_a_job.py").is_file() for one in found):
            raise NotTried(f"no Ray to attack: {[one.said for one in found if one.mode is None]}")
        replaced = as_stranger(lambda: [one.name for one in found if _replaced(one)])
        if replaced:
            raise GotIn(f"{', '.join(replaced)}: another user replaced the code of a job")
        return f"another user reaches none of the {len(found)} folders: {found[0].folder.parent} is closed"


def _replaced(started: Started) -> bool:
    try:
        (started.folder / "code_of_a_job.py").write_text("hers", encoding="utf-8")
    except OSError:
        return False
    return True
