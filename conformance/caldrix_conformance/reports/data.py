"""A run's report as JSON, for programs: `caldrix spec coverage` reads it, and so may others."""

from __future__ import annotations

import json
from typing import Any

from caldrix_conformance.verdicts import Report, Verdict


def report_json(report: Report) -> str:
    """The whole report as JSON text, one clause after the other in the spec's order."""
    value = {
        "contract": report.contract,
        "target": report.target,
        "model": report.model,
        "began": report.began.isoformat(timespec="seconds"),
        "seconds": round(report.seconds, 1),
        "capabilities": sorted(capability.value for capability in report.capabilities),
        "counts": {status.value: count for status, count in report.counts().items()},
        "faults": list(report.faults),
        "broke_off": report.broke_off or None,
        "clauses": [_verdict(verdict) for verdict in report.verdicts],
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _verdict(verdict: Verdict) -> dict[str, Any]:
    clause = verdict.clause
    return {
        "id": clause.id,
        "level": clause.level.value,
        "status": verdict.status.value,
        "promise": clause.promise,
        "where": clause.where,
        "source": clause.source.value,
        "needs": sorted(capability.value for capability in clause.needs),
        "seen": verdict.seen,
        "cases": list(verdict.cases),
        "failures": [{"case": one.case, "seen": one.seen} for one in verdict.failures],
    }
