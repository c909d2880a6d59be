"""The places of tokens that a spec names, and whether their documents are read."""

import math

from checkpointing.stores.contract import StoreError
from checkpointing.stores.local import LocalStore
from checkpointing.stores.opening import open_store
from jobs.runs.data_check.find import Data, num_held_out_of_each, places_of
from jobs.runs.data_read.documents import Place, TooManyDocuments, read_documents
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.token_index import DataError, TokenIndex
from reporting.recording.read_data import DocumentFacts

# A core tells of so many in a second.
FEW_DOCUMENTS = 500_000


def places_to_read(spec: RunSpec, data: Data | None) -> list[Place]:
    return [
        Place(
            store=open_store(tokens.url),
            index=tokens.index,
            end_id=end_id_of(tokens.index) if tokens.end_id is None else tokens.end_id,
            windows=tokens.windows,
            num_held_out=num_held_out_of_each(spec),
        )
        for tokens in places_of(data)
    ]


def end_id_of(index: TokenIndex) -> int | None:
    return index.vocabulary.end_id if index.vocabulary else None


def documents_of(place: Place, *, is_asked: bool, are_few: bool) -> DocumentFacts | str:
    """The documents, or why they were not read. Unless that is asked for, only few tokens and documents on a
    disk of this machine are read, and no failing store hides what else is known of them.
    """
    if place.end_id is None and not place.index.chat:
        return "nothing tells which token ends one; a spec says so with data.end_id"
    if not (is_asked or (are_few and isinstance(place.store, LocalStore))):
        return f"--documents reads all {place.num_bytes:,} bytes for them"
    try:
        return read_documents(place, math.inf if is_asked else FEW_DOCUMENTS)
    except TooManyDocuments:
        return f"--documents reads more than {FEW_DOCUMENTS:,} of them"
    except DataError as error:
        return str(error)
    except StoreError as error:
        if is_asked:
            raise
        return str(error)
