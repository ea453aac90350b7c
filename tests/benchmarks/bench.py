"""Times a model on this machine. Run nothing beside it.

Usage: python -m tests.benchmarks.bench [MODEL] [--rounds N] [--threads N]
"""

from __future__ import annotations

import argparse
from statistics import median

from caldrix.weights.names import resolve
from tests.benchmarks.measure import caldrix, measure


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    with caldrix(resolve(options.model).path, options.backend, options.threads) as subject:
        measure(subject)
        speeds = [measure(subject) for _ in range(options.rounds)]
    print(f"{subject.name}, {options.model}: tokens/s, median of {options.rounds} rounds")
    print(f"prefill {median(s.pp for s in speeds):.1f}, decode {median(s.tg for s in speeds):.1f}")


if __name__ == "__main__":
    main()
