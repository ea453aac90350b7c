"""Writes into goldens how sure their model is of them, computed in float32 with numpy.

`just goldens` runs it after the goldens are written. Each text golden that lacks it gets the
smallest gap between the two best logits along its answer, and each continuation of a fingerprint
its own. Below `caldrix_conformance.capture.LEAST_MARGIN` the suite does not assert a text, since
another order of sums may give another one.

The embedded model is served here on the numpy kernels, and the requests are sent again: an answer
that float32 does not give is an error, and nothing is written. Goldens of other models are named.
To have a margin computed anew, make it null.

Usage, from the project's folder: python -m tests.references.golden_margins
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio
from attrs import evolve, field, frozen

from caldrix.engine.engine import running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.http.config import ServerConfig
from caldrix.http.server import Shutdown, serve
from caldrix.http.service import Service
from caldrix.http.telemetry import Telemetry
from caldrix.models.lane import Executor, Slice, find_lane
from caldrix.models.loading import load_model
from caldrix.weights.names import DEFAULT_MODEL, resolve
from caldrix.weights.tensor import Float32
from caldrix_conformance.answers import read_usage
from caldrix_conformance.capture import (
    Capture,
    Kind,
    Request,
    golden_text,
    read_golden_file,
)
from caldrix_conformance.fingerprint import (
    Continuation,
    Fingerprint,
    fingerprints_directory,
    folder_name,
)
from caldrix_conformance.resources import goldens_directory
from caldrix_conformance.target import Target
from caldrix_cpu.lane import KERNELS_VARIABLE
from tests.support.never_reused import NeverReused

CONTRACT = "caldrix"
CONTEXT = 1024
DIGITS = 3
UNSURE = ": too near to be asserted"


class Unconfirmed(Exception):
    """Float32 gives another answer than a golden holds."""


@frozen(eq=False)
class Watched(NeverReused):
    """An executor that keeps how far apart the two best logits of each step were."""

    executor: Executor
    margins: list[float] = field(factory=list)

    @property
    def vocab_size(self) -> int:
        return self.executor.vocab_size

    def step(self, slices: Sequence[Slice]) -> Float32:
        logits = self.executor.step(slices)
        for row in logits:
            second, best = np.partition(row, -2)[-2:]
            self.margins.append(float(best - second))
        return logits


@frozen
class Margins:
    """Asks a target that is computed in this process, and reads the margins of its answers."""

    target: Target
    margins: list[float]

    def of_golden(self, name: str, stored: Capture) -> float:
        """The smallest margin of an answer. Raises Unconfirmed for another answer than stored."""
        self.margins.clear()
        request = stored.request.for_model(self.target.model)
        answer = self.target.post(request.path, request.body)
        margins = list(self.margins)
        difference = stored.difference(stored.like(answer, model=self.target.model))
        if difference is not None:
            raise Unconfirmed(f"{name}: {difference}, by float32")
        return min(margins[: self._picks(request)])

    def _picks(self, request: Request) -> int:
        """The tokens that an answer took: its own, and the one by which the model ended it.

        The engine may have gone on while a stop string was being looked for. A stream need not say
        how many tokens it has, so the request is sent once more.
        """
        body = {name: value for name, value in (request.body or {}).items() if name != "stream"}
        answer = self.target.post(request.path, body).expect(200).object
        ended_itself = answer["choices"][0]["finish_reason"] == "stop" and not body.get("stop")
        return read_usage(answer["usage"]).completion_tokens + ended_itself

    def of_continuation(self, prompt: str, stored: Continuation) -> float:
        """The margin of a first token. Raises Unconfirmed for another one."""
        self.margins.clear()
        seen = self.target.completions(prompt=prompt, max_tokens=1).text
        if seen != stored.text:
            raise Unconfirmed(
                f"{prompt!r} is followed by {seen!r} by float32, in the fingerprint by "
                f"{stored.text!r}"
            )
        return self.margins[0]


def text_goldens(model: str) -> Iterator[tuple[Path, Capture]]:
    """The text goldens of a fingerprint that lack a margin. Raises GoldenError."""
    for path in sorted(goldens_directory(CONTRACT).glob(f"*/{model}/*.json")):
        stored = read_golden_file(path, path.name)
        if isinstance(stored, Capture) and stored.kind is Kind.TEXT and stored.margin is None:
            yield path, stored


def lacks_margins(path: Path) -> bool:
    """Whether a fingerprint's file, or a golden of it, lacks a margin. Raises GoldenError."""
    continuations = Fingerprint.read(path).continuations.values()
    return any(each.margin is None for each in continuations) or any(text_goldens(path.stem))


def with_margins(margins: Margins, path: Path) -> Iterator[tuple[Path, str]]:
    """The files of a fingerprint and of its goldens that change, and what they should say.

    Raises Unconfirmed and GoldenError.
    """
    fingerprint = Fingerprint.read(path)
    continuations = dict(fingerprint.continuations)
    for prompt, each in fingerprint.continuations.items():
        if each.margin is None:
            margin = margins.of_continuation(prompt, each)
            continuations[prompt] = evolve(each, margin=round(margin, DIGITS))
            print(f"{margin:8.3f}  {prompt!r}{'' if continuations[prompt].is_sure else UNSURE}")
    yield path, evolve(fingerprint, continuations=continuations).to_text()
    for golden_path, stored in text_goldens(path.stem):
        name = golden_path.relative_to(goldens_directory(CONTRACT)).as_posix()
        margin = margins.of_golden(name, stored)
        known = evolve(stored, margin=round(margin, DIGITS))
        print(f"{margin:8.3f}  {name}{'' if known.asserts_text else UNSURE}")
        yield golden_path, golden_text(known)


@asynccontextmanager
async def serving(served_name: str, path: Path) -> AsyncIterator[tuple[str, list[float]]]:
    """A server of a model on the numpy kernels: its address, and the margins of its steps."""
    shutdown = Shutdown()
    with load_model(path, lane=find_lane("cpu"), context=CONTEXT) as model:
        watched = Watched(model.executor)
        async with (
            running_engine(watched, context=model.context, rows=1, queue_depth=1) as engine,
            trio.open_nursery() as nursery,
        ):
            service = Service(
                served_name=served_name,
                engine=engine,
                tokenizer=model.tokenizer,
                template=model.template,
                vocab_size=model.program.vocab_size,
                telemetry=Telemetry(lane="cpu"),
                sampling=SamplingSettings(),
            )

            async def run(task_status: trio.TaskStatus[list[str]]) -> None:
                config = ServerConfig(port=0)
                await serve(service, config, shutdown=shutdown, task_status=task_status)

            (url,) = await nursery.start(run)
            yield url, watched.margins
            shutdown.request()


def write_margins(url: str, margins: list[float], path: Path) -> int:
    """Write those of a fingerprint and its goldens, whose model is at ``url``; the exit status."""
    with Target.connect(url) as target:
        try:
            texts = dict(with_margins(Margins(target, margins), path))
        except Unconfirmed as unconfirmed:
            print(unconfirmed, file=sys.stderr)
            return 1
    for each, text in texts.items():
        each.write_text(text, "utf-8")
    return 0


async def main() -> int:
    """Serve the embedded model if goldens of it lack margins, and write these."""
    resolved = resolve(DEFAULT_MODEL)
    ours = folder_name(resolved.served_name)
    lacking = {
        path.stem: path
        for path in sorted(fingerprints_directory(CONTRACT).glob("*.json"))
        if lacks_margins(path)
    }
    for name in lacking:
        if name != ours:
            print(f"margins of {name} are unknown: its texts are not asserted")
    if ours not in lacking:
        return 0
    async with serving(resolved.served_name, resolved.path) as (url, margins):
        return await trio.to_thread.run_sync(write_margins, url, margins, lacking[ours])


if __name__ == "__main__":
    os.environ[KERNELS_VARIABLE] = "numpy"
    sys.exit(trio.run(main))
