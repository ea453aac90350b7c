"""The suite's counts of Qwen3's tokens, against our server with Qwen3's tokenizer.

The weights are random and small: only what they are asked, and how much that is, is looked at.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.numpy import save_file

from caldrix_conformance.options import Settings
from caldrix_conformance.run import judge
from caldrix_conformance.verdicts import Status
from tests.acceptance.conftest import caldrix_serve
from tests.references import tiny
from tests.support.golden_runs import COUNTED, OF_A_MODEL

VOCAB = 151_936


def test_counts_are_those_of_the_real_tokenizer(qwen3_tokenizer_dir: Path, tmp_path: Path) -> None:
    model = tmp_path / "qwen3-of-chance"
    model.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(qwen3_tokenizer_dir / name, model)
    config = {**tiny.CONFIGS["qwen3"], "vocab_size": VOCAB, "max_position_embeddings": 2048}
    (model / "config.json").write_text(json.dumps(config))
    weights = tiny.weights_of(config, seed=1)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with caldrix_serve(str(model)) as url:
        report = judge(Settings(url=url, only=tuple(OF_A_MODEL)))
    assert report is not None
    statuses = {verdict.clause.id: verdict.status for verdict in report.verdicts}
    assert {statuses[clause_id] for clause_id in COUNTED} == {Status.PASSED}
    assert {statuses[clause_id] for clause_id in OF_A_MODEL - COUNTED} == {Status.UNSUPPORTED}
