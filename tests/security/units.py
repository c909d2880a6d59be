"""Attack 8: whoever forgets two lines of an environment file opens Ray to everybody."""

from pathlib import Path

from tests.security.attack import GotIn, NotTried, product
from tests.security.ray_stand_in import starts

_TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x" * 64}


def attack(tree: Path) -> str:
    with product(tree) as its, starts(its) as without:
        pass
    with product(tree) as its, starts(its, **_TOKEN) as with_token:
        pass
    if never := [one.name for one in with_token if one.mode != "token"]:
        raise NotTried(f"{', '.join(never)}: starts no Ray with a token either")
    if open_to_all := [one.name for one in without if one.mode not in (None, "token")]:
        raise GotIn(f"{', '.join(open_to_all)}: Ray is started without a token, so that each port runs code")
    refused = [one.said.strip() for one in without if one.mode is None]
    return f"{len(refused)} of {len(without)} start nothing without one, the others ask: {refused[0][:90]}"
