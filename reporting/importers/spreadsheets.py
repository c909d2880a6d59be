"""This module reads Excel workbooks (xlsx): every sheet as a grid of cells in which merged cells
are filled.
"""

import io
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from reporting.importers.contents import ImportProblem, SourceContents, listed
from reporting.importers.grids import read_grids
from reporting.importers.mapping import NameMapping

# In memory, a workbook takes many times the size of its XML.
_MOST_XML_BYTES = 32 << 20
_MOST_SHEETS = 100
_MOST_CELLS = 500_000
# The first bytes of an encrypted workbook, and of the format before xlsx.
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")
_MERGED = re.compile(
    rb"""mergeCell\b[^>]{0,200}?\bref\s*=\s*["']\$?([A-Za-z]{1,3})\$?(\d{1,7}):\$?([A-Za-z]{1,3})\$?(\d{1,7})"""
)
_DAMAGED = (zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RuntimeError, EOFError)


def read_spreadsheet(data: bytes, mapping: NameMapping) -> SourceContents:
    _check_size(data)
    book = _book(data, data_only=True)
    found = read_grids([(sheet.title, list(_rows(sheet))) for sheet in book.worksheets], mapping)
    return replace(found, notes=(*found.notes, *_unknown_formulas(book, data)))


def _check_size(data: bytes) -> None:
    if data.startswith(_OLE):
        raise ImportProblem("encrypted, or an old xls: expected an xlsx without a password")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            _refuse_rare_packing(archive)
            size = sum(member.file_size for member in archive.infolist())
            merged = _num_merged(archive) if size <= _MOST_XML_BYTES else 0
    except _DAMAGED as error:
        raise ImportProblem(f"not an xlsx workbook, or damaged ({error})") from None
    if merged > _MOST_CELLS:
        raise ImportProblem(f"its merged areas have {merged:,} cells, expected at most {_MOST_CELLS:,}")
    if size > _MOST_XML_BYTES:
        raise ImportProblem(
            f"{size / 1e6:,.0f} MB when unpacked, expected at most {_MOST_XML_BYTES / 1e6:,.0f} MB: "
            "save the sheets that matter as CSV"
        )


def _refuse_rare_packing(archive: zipfile.ZipFile) -> None:
    """No workbook is packed otherwise, and what unpacks LZMA takes as much memory as a file tells it to."""
    if rare := {one.compress_type for one in archive.infolist()} - {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        raise ValueError(f"packed by method {min(rare)}, which workbooks do not know")


def _num_merged(archive: zipfile.ZipFile) -> int:
    """Counts the cells of all merged areas, since the library makes each of them as it opens the file."""
    num_cells = 0
    for name in archive.namelist():
        # The library takes sheets of any name.
        if name.lower().endswith(".xml"):
            xml = archive.read(name)[:_MOST_XML_BYTES]
            num_cells += sum(_num_cells(match) for match in _MERGED.finditer(xml))
    return num_cells


def _num_cells(area: re.Match[bytes]) -> int:
    left, top, right, bottom = (part.decode() for part in area.groups())
    width, height = _column(right) - _column(left) + 1, int(bottom) - int(top) + 1
    return max(0, width) * max(0, height)


def _column(letters: str) -> int:
    number = 0
    for letter in letters.upper():
        number = 26 * number + ord(letter) - ord("A") + 1
    return number


def _unknown_formulas(book: Any, data: bytes) -> Iterator[str]:
    """Names formulas whose results the program that wrote the file did not store."""
    written = _book(data, data_only=False)
    for sheet in written.worksheets:
        places = [
            cell.coordinate
            for row in sheet.iter_rows()
            for cell in row
            if cell.data_type == "f" and book[sheet.title][cell.coordinate].value is None
        ]
        if places:
            yield (
                f"{sheet.title}: formulas without a stored result are left out: {listed(places)}; "
                "a spreadsheet program stores them when it saves the file"
            )


def _book(data: bytes, *, data_only: bool) -> Any:
    from openpyxl import load_workbook

    try:
        with warnings.catch_warnings():
            # It warns of styles and extensions that it ignores, which don't matter here.
            warnings.simplefilter("ignore")
            book = load_workbook(io.BytesIO(data), data_only=data_only)
    # A damaged workbook can make the library raise almost any error.
    except Exception as error:
        raise ImportProblem(
            f"not an xlsx workbook, or damaged ({type(error).__name__}: {str(error)[:200]})"
        ) from None
    sheets = book.worksheets
    if len(sheets) > _MOST_SHEETS or sum(sheet.max_row * sheet.max_column for sheet in sheets) > _MOST_CELLS:
        raise ImportProblem(
            f"more than {_MOST_SHEETS} sheets or {_MOST_CELLS:,} cells: save the sheets that matter as CSV"
        )
    return book


def _rows(sheet: Any) -> Iterator[list[Any]]:
    merged = {
        place: sheet.cell(area.min_row, area.min_col)
        for area in sheet.merged_cells.ranges
        for places in area.rows
        for place in places
    }
    for row in sheet.iter_rows():
        yield [_value(merged.get((cell.row, cell.column), cell)) for cell in row]


def _value(cell: Any) -> Any:
    """Returns the cell's value. A number shown as a percentage becomes one: ``41.5%``, not ``0.415``."""
    value = cell.value
    if isinstance(value, int | float) and not isinstance(value, bool) and "%" in str(cell.number_format):
        return f"{value * 100!r}%"
    return value if value is None or isinstance(value, str | int | float) else str(value)
