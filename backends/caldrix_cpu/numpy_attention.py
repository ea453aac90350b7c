"""Attention over a KV cache in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from attrs import frozen

from caldrix.models.program import KvCache
from caldrix.weights.tensor import Float32

_QUERIES_AT_A_TIME = 128
"""A block sees no keys past its own, so smaller blocks waste less on what the mask hides."""
_SCORES_AT_A_TIME = 8_000_000
"""And a block is smaller where a long context would make its scores large."""


@frozen(eq=False)
class CacheArrays:
    """A layer's keys and values, each ``[rows, kv_heads, context, head_dim]`` float32."""

    keys: Float32
    values: Float32
    window: int | None

    @classmethod
    def allocate(cls, cache: KvCache, rows: int, context: int) -> Self:
        """Zeroed arrays; the system gives their memory as it is first written."""
        shape = (rows, cache.kv_heads, context, cache.head_dim)
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32), cache.window)

    def write(self, row: int, start: int, keys: Float32, values: Float32) -> None:
        """Puts ``[tokens, kv_heads * head_dim]`` keys and values at ``start`` and after."""
        tokens = len(keys)
        _, heads, _, head_dim = self.keys.shape
        for cached, new in ((self.keys, keys), (self.values, values)):
            by_head = new.reshape(tokens, heads, head_dim).swapaxes(0, 1)
            cached[row, :, start : start + tokens] = by_head

    def parts(self, row: int, length: int) -> Sequence[Float32]:
        """Views of a row's first ``length`` positions."""
        return [array[row, :, :length] for array in (self.keys, self.values)]


def cache_bytes(cache: KvCache, context: int) -> int:
    """Bytes of one row's `CacheArrays`; a window saves none of them."""
    return 2 * 4 * cache.kv_heads * cache.head_dim * context


def attend(queries: Float32, cache: CacheArrays, row: int, start: int) -> Float32:
    """Causal attention of scaled queries ``[tokens, heads * head_dim]`` from position ``start`` on.

    The cache already holds this step's keys and values. Returns the same shape.
    """
    tokens = len(queries)
    kv_heads, head_dim = cache.keys.shape[1], cache.keys.shape[3]
    if tokens == 1:
        return _attend_one(queries.reshape(kv_heads, -1, head_dim), cache, row, start)
    out = np.empty(queries.shape, np.float32)
    heads = queries.shape[1] // head_dim
    fitting = _SCORES_AT_A_TIME // (heads * (start + tokens))
    most = max(1, min(_QUERIES_AT_A_TIME, fitting))
    for first in range(0, tokens, most):
        stop = min(first + most, tokens)
        block = queries[first:stop].reshape(stop - first, kv_heads, -1, head_dim)
        out[first:stop] = _attend_block(
            block.transpose(1, 2, 0, 3), cache, row, start + first
        ).reshape(stop - first, -1)
    return out


def _attend_one(queries: Float32, cache: CacheArrays, row: int, position: int) -> Float32:
    """For one token's queries ``[kv_heads, group, dim]``: ``[1, heads * dim]``."""
    seen = 0 if cache.window is None else max(0, position + 1 - cache.window)
    scores = queries @ cache.keys[row, :, seen : position + 1].swapaxes(1, 2)
    scores -= np.maximum.reduce(scores, axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    attended: Float32 = weights @ cache.values[row, :, seen : position + 1]
    attended /= np.add.reduce(weights, axis=-1, keepdims=True)
    return attended.reshape(1, -1)


def _attend_block(queries: Float32, cache: CacheArrays, row: int, start: int) -> Float32:
    """For ``[kv_heads, group, tokens, dim]`` queries: ``[tokens, kv_heads, group, dim]``."""
    kv_heads, group, tokens, head_dim = queries.shape
    end = start + tokens
    seen = 0 if cache.window is None else max(0, start + 1 - cache.window)
    keys, values = cache.keys[row, :, seen:end], cache.values[row, :, seen:end]
    flat = queries.reshape(kv_heads, group * tokens, head_dim)
    scores = (flat @ keys.swapaxes(1, 2)).reshape(kv_heads, group, tokens, end - seen)
    position, key = np.arange(start, end)[:, None], np.arange(seen, end)
    hidden = key > position
    if cache.window is not None:
        hidden |= key <= position - cache.window
    scores += np.where(hidden, np.float32(-np.inf), np.float32(0))
    scores -= scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores, out=scores)
    weights /= weights.sum(axis=-1, keepdims=True)
    attended: Float32 = weights.reshape(kv_heads, group * tokens, -1) @ values
    return attended.reshape(kv_heads, group, tokens, head_dim).transpose(2, 0, 1, 3)
