"""An examination and its findings for programs. Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from jobs.doctor.examination import Examination, Finding
from jobs.doctor.judging import exit_code, worst


def as_json(seen: Examination, findings: Sequence[Finding]) -> str:
    """Everything that was measured, in base units; where a node or link has text, it says why not."""
    found = asdict(seen)
    if seen.forecast:
        found["forecast"]["store_bytes"] = seen.forecast.store_bytes
    found |= {
        "verdict": worst(findings),
        "exit_code": exit_code(findings),
        "findings": [asdict(finding) for finding in findings],
    }
    return json.dumps(found, indent=1) + "\n"
