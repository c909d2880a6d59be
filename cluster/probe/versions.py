"""The versions of its libraries that Longhaul works with. Pure.

The ranges are those of ``pyproject.toml``, the tested versions those of ``constraints.txt``; a test compares
them. They stand here too, since a wheel has neither file, and a tree that Ray has copied no metadata.
`make test-versions` tries the oldest and the newest ones.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.set_up import is_before, release


@dataclass(frozen=True, slots=True, kw_only=True)
class Supported:
    """From ``oldest`` on, below ``below``, which nobody has tried. All tests ran with ``tested``."""

    oldest: str
    below: str
    tested: str

    def place_of(self, version: str) -> Literal["older", "inside", "newer"]:
        """Where ``version`` lies; a local build (2.13.0+rocm10.0) counts as its version."""
        if is_before(version, self.oldest):
            return "older"
        return "inside" if release(version) < release(self.below) else "newer"

    def __str__(self) -> str:
        return f"from {self.oldest} to below {self.below}"


def _range(oldest: str, below: str, tested: str) -> Supported:
    return Supported(oldest=oldest, below=below, tested=tested)


SUPPORTED: Mapping[str, Supported] = {
    "torch": _range("2.13", "2.14", "2.13.0"),
    "ray": _range("2.57.1", "2.61", "2.60.0"),
    "deepspeed": _range("0.19", "0.20", "0.19.8"),
    "pyarrow": _range("17", "27", "26.0.1"),
    "pydantic": _range("2.13", "3", "2.14.3"),
    "pyyaml": _range("6.0.1", "7", "6.0.4"),
    "rich": _range("13.8", "16", "15.0.0"),
    "numpy": _range("2.0.2", "3", "2.4.6"),
    "psutil": _range("6", "8", "7.2.2"),
    "nvidia-ml-py": _range("12.535.133", "14", "13.615.71"),
    "obstore": _range("0.8", "0.13", "0.12.1"),
    "boto3": _range("1.36", "2", "1.44.5"),
    "xxhash": _range("3.4.1", "5", "4.1.0"),
    "matplotlib": _range("3.10", "3.12", "3.11.2"),
    "openpyxl": _range("3.1", "4", "3.1.5"),
    "tensorboardX": _range("2.6", "3", "2.6.5"),
    "orjson": _range("3.10", "4", "3.13.0"),
}
# Their versions decide most, so doctor says which of them were tested.
FOREMOST = ("torch", "ray", "deepspeed", "pyarrow")


def too_old(version_of: Callable[[str], str | None]) -> Iterator[str]:
    """One line for each library that is there and older than the oldest version that works."""
    for package, supported in SUPPORTED.items():
        version = version_of(package)
        if version and supported.place_of(version) == "older":
            yield (
                f"{package} {version} is too old: Longhaul works with {package} {supported}, "
                f"and was tested with {supported.tested}"
            )
