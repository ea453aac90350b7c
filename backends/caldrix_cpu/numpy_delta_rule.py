"""The gated delta rule in numpy: in chunks of tokens, or one by itself.

A chunk is computed from products of matrices (Yang, Kautz and Hatamizadeh, 2024). With ``g[t]``
the logarithm of a token's decay and ``G[t]`` its sum from the chunk's first token on, the state
after token ``t`` is ``exp(G[t]) S + sum over i <= t of exp(G[t] - G[i]) outer(k[i], d[i])``. What
each token adds, ``d[t]``, then solves a unit lower triangular system::

    d[t] + sum over i < t of beta[t] exp(G[t] - G[i]) (k[t] . k[i]) d[i]
        = beta[t] (v[t] - exp(G[t]) S.T k[t])
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from caldrix.models.program import DeltaRule
from caldrix.weights.tensor import Float32

CHUNK = 64
"""Tokens computed together."""

_EARLIER = np.tri(CHUNK, k=-1, dtype=np.bool_)
_UP_TO = np.tri(CHUNK, dtype=np.bool_)


class GatedDeltaRule:
    """One `DeltaRule`, with its decays' ``rates`` and ``biases``, both ``[heads]``."""

    def __init__(self, operation: DeltaRule, rates: Float32, biases: Float32) -> None:
        self._key_heads = operation.key_heads
        self._scale, self._eps = np.float32(operation.scale), np.float32(operation.eps)
        self._rates, self._biases = rates, biases
        heads = np.arange(operation.heads)
        group = operation.heads // operation.key_heads
        self._key_head = heads % operation.key_heads if operation.tiled else heads // group

    def __call__(
        self, q: Float32, k: Float32, v: Float32, decay: Float32, strength: Float32, state: Float32
    ) -> Float32:
        """The result for one row's tokens, ``[tokens, heads * value_dim]``.

        ``state`` is the row's, ``[heads, key_dim, value_dim]``, and is changed in place.
        """
        q, k = (self._unit(each) for each in (q, k))
        q *= self._scale
        values = v.reshape(len(v), len(state), -1).swapaxes(0, 1)
        logs: Float32 = (-self._rates * np.logaddexp(np.float32(0), decay + self._biases)).T
        strengths: Float32 = (np.float32(1) / (np.float32(1) + np.exp(-strength))).T
        out = np.empty((len(v), *values.shape[::2]), np.float32)
        for first in range(0, len(v), CHUNK):
            part = slice(first, first + CHUNK)
            chunk = q[:, part], k[:, part], values[:, part], logs[:, part], strengths[:, part]
            by_head = _token(*chunk, state) if chunk[0].shape[1] == 1 else _chunk(*chunk, state)
            out[part] = by_head.swapaxes(0, 1)
        return out.reshape(len(v), -1)

    def _unit(self, x: Float32) -> Float32:
        """Queries or keys of length one, as each head reads them: ``[heads, tokens, key_dim]``."""
        by_head = x.reshape(len(x), self._key_heads, -1)
        length = np.sqrt(np.vecdot(by_head, by_head) + self._eps)
        unit: Float32 = by_head / length[..., None]
        return np.take(unit.swapaxes(0, 1), self._key_head, axis=0)


def _token(
    q: Float32, k: Float32, v: Float32, logs: Float32, strengths: Float32, state: Float32
) -> Float32:
    """For one token: ``[heads, 1, value_dim]``."""
    state *= np.exp(logs)[..., None]
    added = strengths[..., None] * (v - k @ state)
    state += k.swapaxes(1, 2) * added
    return q @ state


def _chunk(
    q: Float32, k: Float32, v: Float32, logs: Float32, strengths: Float32, state: Float32
) -> Float32:
    """For the tokens of a chunk: ``[heads, tokens, value_dim]``."""
    tokens = q.shape[1]
    # Sums of many tokens' decays are large, and what counts is their differences.
    sums = np.cumsum(logs, axis=1, dtype=np.float64)
    earlier, up_to = _EARLIER[:tokens, :tokens], _UP_TO[:tokens, :tokens]
    decays = _exp(np.where(up_to, sums[:, :, None] - sums[:, None], -np.inf))
    since_state, to_end = _exp(sums)[..., None], _exp(sums[:, -1:] - sums)[..., None]
    beta = strengths[..., None]
    keys = k.swapaxes(1, 2)
    system = np.where(earlier, beta * decays * (k @ keys), 0)
    system += np.eye(tokens, dtype=np.float32)
    added = np.linalg.solve(system, beta * (v - since_state * (k @ state)))
    out: Float32 = since_state * (q @ state) + (decays * (q @ keys)) @ added
    state *= since_state[:, -1:]
    state += keys @ (to_end * added)
    return out


def _exp(x: npt.NDArray[np.float64]) -> Float32:
    return np.exp(x).astype(np.float32)
