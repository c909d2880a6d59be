"""Errors of checkpoints: the type of each says what the caller may do. Pure."""


class Corrupt(Exception):
    """The bytes are not what was saved; the caller steps back to an older generation."""


class Fenced(Exception):
    """A later attempt has taken over the run. The caller must end: nothing that it does counts any more."""


def taken_over(run: str, term: int, owner: str) -> Fenced:
    heir = f"attempt {term} is that of {owner}"
    return Fenced(f"a later attempt has taken {run} over; this one ends itself ({heir})")


class NothingToResume(Exception):
    """The run or generation asked for exists, but no generation of it can be loaded. The user has to
    decide.
    """


class Unfit(Exception):
    """The generation is whole, but belongs to another model or training. The user has to decide."""
