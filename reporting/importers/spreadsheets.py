"""This module reads Excel workbooks (xlsx): every sheet as a grid of cells in which merged cells
are filled.
"""

import io
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

from reporting.importers.contents import ImportProblem, SourceContents
from reporting.importers.grids import Grid, read_grids
from reporting.importers.mapping import NameMapping

# In memory, a workbook takes many times the size of its XML.
_MOST_XML_BYTES = 32 << 20
_MOST_SHEETS = 100
_MOST_CELLS = 500_000
# The first bytes of an encrypted workbook, and of the format before xlsx.
_OLE = bytes.fromhex("d0cf11e0a1b11ae1")


def read_spreadsheet(data: bytes, mapping: NameMapping) -> SourceContents:
    _check_size(data)
    return read_grids(_grids(data), mapping)


def _check_size(data: bytes) -> None:
    if data.startswith(_OLE):
        raise ImportProblem("encrypted, or an old xls: expected an xlsx without a password")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ImportProblem(f"not an xlsx workbook, or damaged ({error})") from None
    if size > _MOST_XML_BYTES:
        raise ImportProblem(
            f"{size / 1e6:,.0f} MB when unpacked, expected at most {_MOST_XML_BYTES / 1e6:,.0f} MB: "
            "save the sheets that matter as CSV"
        )


def _grids(data: bytes) -> list[tuple[str, Grid]]:
    from openpyxl import load_workbook

    try:
        with warnings.catch_warnings():
            # It warns of styles and extensions that it ignores, which don't matter here.
            warnings.simplefilter("ignore")
            book = load_workbook(io.BytesIO(data), data_only=True)
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
    return [(sheet.title, list(_rows(sheet))) for sheet in sheets]


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
