"""What can go wrong with checkpoints; the type says what the caller may do. Pure."""


class Corrupt(Exception):
    """These bytes are not what was saved: step back to an older generation."""


class Fenced(Exception):
    """A later attempt has taken the run over: end yourself, nothing that you do counts any more."""


def taken_over(run: str, term: int, owner: str) -> Fenced:
    heir = f"attempt {term} is that of {owner}"
    return Fenced(f"a later attempt has taken {run} over; this one ends itself ({heir})")


class NothingToResume(Exception):
    """There is something of this name, but no generation of it can be loaded: the user's turn."""


class Unfit(Exception):
    """Whole, but of another model or training than the one that asks for it: the user's turn."""
