"""The values of ``--set``: which of them are secrets, and how one is taken from a file.

Everybody on a machine reads the command lines of its processes, and Ray shows those of its jobs. So a secret
is taken from a file (``--set A.B=@FILE``). Our own processes hand each other secrets through files without a
name.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cluster.ray_internals import is_job_driver
from cluster.yaml_file import YamlError, parse_yaml
from jobs.commandline.output import say
from jobs.commandline.own_file import text_of_own_file
from reporting.results.redaction import REDACTED, is_secret, without_credentials

FLAG = "--set"
_FROM_FILE = "@"
# An open file of this process: its name means nothing to anybody else.
_OPEN = "/dev/fd/"


def is_secret_setting(setting: str) -> bool:
    """Whether ``A.B=C`` itself holds a secret: a variable of that name, or a text that looks like one."""
    path, _, text = setting.partition("=")
    if text.startswith(_FROM_FILE):
        return False
    try:
        value = parse_yaml(text)
    except YamlError:
        value = text
    return _holds_secret(value, tuple(path.split(".")))


def without_secret(setting: str) -> str:
    """``A.B=C`` as people may read it."""
    path, _, text = setting.partition("=")
    is_hidden = is_secret_setting(setting) or text.startswith(_FROM_FILE + _OPEN)
    return f"{path}={REDACTED}" if is_hidden else setting


def seen_from_elsewhere(setting: str) -> str:
    """``A.B=@FILE`` with the file's absolute path; other settings stay."""
    path, _, text = setting.partition("=")
    if not text.startswith(_FROM_FILE):
        return setting
    return f"{path}={_FROM_FILE}{Path(text.removeprefix(_FROM_FILE)).expanduser().absolute()}"


def warn_of_secrets_in_job(settings: Sequence[str]) -> None:
    """Says which secrets Ray's list of jobs shows, if this process is the driver of a submitted job."""
    for path in (one.partition("=")[0] for one in settings if is_job_driver() and is_secret_setting(one)):
        say(
            f"longhaul: --set {path}: Ray's list of jobs shows this secret to all who see its jobs; replace "
            f"it where you got it, and give the new one as --set {path}=@FILE, a file of mode 0600",
            to=sys.stderr,
        )


def value_text(text: str, place: str) -> str:
    """What a setting says: ``text``, or what the file holds that it names. ``place`` is for messages."""
    if not text.startswith(_FROM_FILE):
        return text
    return text_of_own_file(Path(text.removeprefix(_FROM_FILE)).expanduser(), place, "with the value")


@contextmanager
def secrets_in_files(words: Sequence[str]) -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """The words of a command without secrets, and the descriptors that its process must be given.

    Each secret lies in a file without a name, which ends with the last process that has it open.
    """
    with ExitStack() as stack:
        descriptors: list[int] = []
        shown = list(words)
        for at, setting in enumerate(words):
            if at and words[at - 1] == FLAG and is_secret_setting(setting):
                path, _, text = setting.partition("=")
                file = stack.enter_context(tempfile.TemporaryFile())
                file.write(text.encode("utf-8", "surrogateescape"))
                file.flush()
                descriptors.append(file.fileno())
                shown[at] = f"{path}={_FROM_FILE}{_OPEN}{file.fileno()}"
        yield shown, tuple(descriptors)


def _holds_secret(value: Any, keys: tuple[str, ...]) -> bool:
    if isinstance(value, dict):
        return any(_holds_secret(below, (*keys, str(key))) for key, below in value.items())
    if isinstance(value, list):
        return any(_holds_secret(below, keys) for below in value)
    # Names that a spec itself defines, such as `data.tokenizer`, hold none.
    is_named = "environment" in keys[:-1] and is_secret(keys[-1])
    is_one_by_form = isinstance(value, str) and without_credentials(value) != value
    return value is not None and (is_named or is_one_by_form)
