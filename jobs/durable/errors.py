"""The one error of ``jobs.durable``. Pure."""


class DurableError(Exception):
    """The run can't go on. The text is for the user: what was found, and what to do."""
