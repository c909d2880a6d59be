"""What a run's driver records of its data, for reports."""

from jobs.runs.data_check.find import Data
from jobs.runs.data_read.documents import Place
from jobs.runs.data_read.places import documents_of, places_to_read
from jobs.spec_schema.run_spec import RunSpec
from jobs.training.task.task import Mixture
from reporting.recording.read_data import ReadSource

# A start reads no more of its data than this for what only people want to know: that takes half a second.
FEW_BYTES = 16 << 20


def read_sources(spec: RunSpec, data: Data | None) -> list[ReadSource]:
    """What is known of each place that is trained on; nothing of synthetic samples."""
    places = places_to_read(spec, data)
    are_few = sum(place.num_bytes for place in places) <= FEW_BYTES
    named: list[tuple[str | None, float | None]] = [(None, None)] * len(places)
    if isinstance(data, Mixture):
        total = sum(one.weight for one in data.sources)
        named = [(one.name, one.weight / total) for one in data.sources]
    return [
        _read_source(place, name, share, are_few=are_few)
        for place, (name, share) in zip(places, named, strict=True)
    ]


def _read_source(place: Place, name: str | None, share: float | None, *, are_few: bool) -> ReadSource:
    found = documents_of(place, is_asked=False, are_few=are_few)
    vocabulary = place.index.vocabulary
    return ReadSource(
        name=name,
        share=share,
        num_tokens=place.index.num_tokens,
        num_samples=place.windows.num_samples if place.windows else 0,
        tokenizer=vocabulary.tokenizer if vocabulary else None,
        digest=place.index.digest,
        documents=None if isinstance(found, str) else found,
        unread=found if isinstance(found, str) else None,
    )
