"""A step's slices, cut so that each run of a tape has a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from caldrix.models.lane import Slice

MOST_TOKENS = 512
"""Tokens computed in one run; a longer step is several."""


@frozen(eq=False)
class Run:
    """Slices, or parts of them, whose tokens are computed together."""

    slices: tuple[Slice, ...]
    tokens: int
    wanted: int

    @property
    def token_ids(self) -> range | None:
        """The range of token ids whose logits are wanted; None for all of them."""
        least, most = [], []
        for part in self.slices:
            if part.wanted:
                if part.only is None:
                    return None
                least.append(int(part.only.min()))
                most.append(int(part.only.max()))
        return range(min(least), max(most) + 1) if least else None


def runs_of(slices: Sequence[Slice]) -> Iterator[Run]:
    """The slices, cut and drawn together so that each run has a bounded number of tokens."""
    group: list[Slice] = []
    room = MOST_TOKENS

    def run() -> Run:
        return Run(
            tuple(group), sum(len(part.tokens) for part in group), sum(p.wanted for p in group)
        )

    if sum(len(each.tokens) for each in slices) <= MOST_TOKENS:
        group = list(slices)
        yield run()
        return
    for each in slices:
        done, count = 0, len(each.tokens)
        while done < count:
            taken = min(room, count - done)
            # Of the wanted last tokens, those that fall into this part.
            rest = count - done - taken
            wanted = max(0, min(taken, each.wanted - rest))
            tokens = each.tokens[done : done + taken]
            features = each.features and each.features.within(done, done + taken)
            draw = each.draw if wanted else None
            group.append(
                Slice(each.row, each.start + done, tokens, wanted, features, each.only, draw)
            )
            done += taken
            room -= taken
            if room == 0:
                yield run()
                group, room = [], MOST_TOKENS
    if group:
        yield run()
