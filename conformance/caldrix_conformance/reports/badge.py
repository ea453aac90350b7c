"""A run's report as a badge: the JSON that shields.io's endpoint badges read."""

from __future__ import annotations

import json

from caldrix_conformance.clauses import Level
from caldrix_conformance.verdicts import Report, Status


def badge_json(report: Report) -> str:
    """How many musts the target keeps of those that could be judged; green if it is all."""
    judged = [
        verdict.status
        for verdict in report.verdicts
        if verdict.clause.level is Level.MUST
        and verdict.status in (Status.PASSED, Status.FAIL, Status.ERROR)
    ]
    kept = judged.count(Status.PASSED)
    whole = kept == len(judged) and not report.faults and not report.broke_off
    value = {
        "schemaVersion": 1,
        "label": f"{report.contract} contract",
        "message": f"{kept} of {len(judged)} musts" if judged else "nothing judged",
        "color": "lightgrey" if not judged else "brightgreen" if whole else "red",
    }
    return json.dumps(value, indent=2) + "\n"
