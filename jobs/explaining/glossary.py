"""All words that are explained. Pure."""

from jobs.explaining.answers import of_answers
from jobs.explaining.cells import of_cells
from jobs.explaining.columns import of_columns
from jobs.explaining.entry import Entry
from jobs.explaining.findings import of_findings
from jobs.explaining.trainings import of_trainings


def glossary() -> tuple[Entry, ...]:
    return (*of_cells(), *of_trainings(), *of_findings(), *of_answers(), *of_columns())
