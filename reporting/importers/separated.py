"""This module reads CSV files of other tools: any usual separator, encoding and decimal sign, headers
anywhere in the first rows. Pure.
"""

import codecs
import csv
import io
import re
from collections.abc import Sequence
from dataclasses import replace

from reporting.importers.contents import ImportProblem, SourceContents
from reporting.importers.grids import read_grids
from reporting.importers.mapping import NameMapping

_SEPARATORS = ",;\t"
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# A number and what may be its unit. Its signs are judged over the whole file.
_NUMBER = re.compile(r"\s*([+-]?[\d.,]*\d[\d.,]*(?:[eE][+-]?\d+)?)(\s*[^\W\d_]*|\s*%)\s*")
# Matching takes the square of the length, and no measured number is longer.
_LONGEST_NUMBER = 100
# By the separator of fields: what may part the thousands of a file, or be its decimal sign. Where semicolons
# divide fields, the comma is often the decimal sign and the point parts the thousands.
_DOUBTFUL = {",": "", "\t": ",", ";": ",."}
# With three digits behind it, a comma may be a decimal sign or part the thousands.
_THOUSANDS = r"[+-]?[1-9]\d{0,2}(?:\SIGN\d{3})+"
_DECIMALS = r"[+-]?\d*\SIGN\d*(?:[eE][+-]?\d+)?"


def read_separated(data: bytes, mapping: NameMapping) -> SourceContents:
    text, notes = _decoded(data)
    separator = max(_SEPARATORS, key=text[:10_000].count)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise ImportProblem(f"not a CSV file ({error})") from None
    if not any(cell.strip() for row in rows for cell in row):
        raise ImportProblem("empty: expected a CSV file with a header and a row per run")
    decimal = mapping.decimal or _decimal_sign(rows, separator)
    found = read_grids([("", [[_plain(cell, decimal) for cell in row] for row in rows])], mapping)
    return replace(found, notes=(*notes, *found.notes))


def _decoded(data: bytes) -> tuple[str, list[str]]:
    """Returns the text, and a note if its encoding is a guess."""
    try:
        if data.startswith(_UTF_16):
            return data.decode("utf-16"), []
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        if data.startswith(_UTF_16) or b"\0" in data:
            raise ImportProblem(f"not a CSV file in UTF-8 or UTF-16 ({error})") from None
    return data.decode("latin-1"), ["it is not in UTF-8, so it was read as Latin-1"]


def _decimal_sign(rows: Sequence[Sequence[str]], separator: str) -> str:
    """Returns the decimal sign of the file. Raises ``ImportProblem`` if its numbers don't say which it is."""
    numbers = [match[1] for row in rows for cell in row if (match := _number(cell))]
    is_comma = any(_has_decimals(number, ",") for number in numbers)
    is_point = any(_has_decimals(number, ".") for number in numbers)
    doubtful = next(
        (each for each in numbers for sign in _DOUBTFUL[separator] if _matches(_THOUSANDS, sign, each)), None
    )
    if is_comma and is_point:
        raise ImportProblem(
            "some of its numbers have a decimal comma, others a decimal point; write them alike, or say "
            'which it is with --mapping: [numbers] decimal = ","'
        )
    if is_comma:
        return ","
    if doubtful and not is_point:
        sign = "comma" if "," in doubtful else "point"
        raise ImportProblem(
            f"{doubtful!r} may have a decimal {sign}, or one that parts the thousands; say which it is with "
            '--mapping: [numbers] decimal = "," or "."'
        )
    return "."


def _number(cell: str) -> re.Match[str] | None:
    return _NUMBER.fullmatch(cell) if len(cell) <= _LONGEST_NUMBER else None


def _has_decimals(number: str, sign: str) -> bool:
    """Whether ``sign`` is a decimal sign in ``number``, beyond doubt."""
    other = "." if sign == "," else ","
    if other in number and sign in number:
        return number.rindex(sign) > number.rindex(other)
    return bool(_matches(_DECIMALS, sign, number)) and not _matches(_THOUSANDS, sign, number)


def _matches(pattern: str, sign: str, number: str) -> bool:
    return re.fullmatch(pattern.replace("\\SIGN", re.escape(sign)), number) is not None


def _plain(cell: str, decimal: str) -> str:
    """Returns the cell with a decimal point, and without the apostrophe that keeps our own tables' texts from
    being formulas.
    """
    if cell[:1] == "'" and cell[1:2] in tuple("=+-@\t\r\n"):
        return cell[1:]
    match = _number(cell) if decimal == "," else None
    if match is None:
        return cell
    return match[1].replace(".", "").replace(",", ".") + match[2]
