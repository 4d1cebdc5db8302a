"""Log-probs and entropies, row by row: seeded rows, drawn by NumPy, judged by the cheapest arithmetic that can.

A row is decided by float64 and the oracle's radius, else in extended precision where the platform's ``longdouble`` has
64 bits or more, else by mpmath.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase
from numerics.suite import bounds, oracle
from numerics.suite.contracts import call
from numerics.suite.implementation import Implementation
from numerics.suite.measure import Measurement, severities, within
from numerics.suite.slack.record import Slack, rounded

__all__ = ["REGIMES", "Block", "blocks", "measure_rows"]

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

REGIMES = ("mixed", "equal", "near_ties", "dominant", "offset", "gaps")
#: rows per call by vocabulary size: wide rows have large n in their bound, narrow ones come closest to it
WIDTHS = {1: 64, 2: 512, 3: 512, 8: 512, 64: 512, 512: 128, 4096: 16}
#: bits of the platform's long double (80-bit x86: 64; IEEE quad: 113; where it is float64 it decides nothing)
EXTENDED_BITS = int(np.finfo(np.longdouble).nmant) + 1


@dataclass(frozen=True, eq=False, repr=False)
class Block(LogitsCase):
    """A `LogitsCase` of one array instead of row specifications: the same to oracle and implementations, but fast.

    (Cases hash by their repr, which costs more than the oracle for a block of this size; a block hashes by identity.)
    """

    z: Array = dataclasses.field(default_factory=lambda: np.zeros((0, 1)))
    ids: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    t: Array = dataclasses.field(default_factory=lambda: np.zeros(0))

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def size(self) -> int:
        """How many rows."""
        return len(self.z)

    @property
    def width(self) -> int:
        """The vocabulary size V."""
        return int(self.z.shape[1])

    @property
    def valid(self) -> Flags:
        """Every row."""
        return np.ones(self.size, dtype=bool)

    @property
    def temperatures(self) -> Array:
        """The temperature of every row, [n]."""
        return self.t

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """The token ids, [n]."""
        return self.ids

    @property
    def values(self) -> Array:
        """The logits as exact float64 numbers, [n, V]."""
        return self.z

    def row(self, i: int) -> LogitsCase:
        """Row ``i`` as an ordinary case, whose repr rebuilds it."""
        row = Logits(tuple(self.z[i].tolist()), int(self.ids[i]), float(self.t[i]))
        return LogitsCase((row,), self.dtype, temperature=self.temperature)


def _draw(rng: np.random.Generator, regime: str, n: int, width: int, dtype: str) -> Array:
    """Logits [n, width] on the grid of ``dtype``."""
    if regime in ("equal", "near_ties", "offset"):
        # ties at 0 would have relative, not absolute, neighbours: bases stay off it
        exponent = rng.uniform(3, min(FORMATS[dtype].emax - 2, 20), n) if regime == "offset" else rng.uniform(-4, 4, n)
        base = np.exp2(exponent) * rng.choice([-1.0, 1.0], n)
        steps = rng.integers(0, {"equal": 1, "near_ties": 4, "offset": 6}[regime], (n, width))
        return rounded(base[:, None] * (1 - 2 * FORMATS[dtype].u * steps), dtype)
    if regime == "gaps":
        z = -rng.uniform(0, 1, (n, width)) * rng.choice([1.0, 10.0, 120.0], (n, 1))
        z[np.arange(n), rng.integers(0, width, n)] = 0.0
        return rounded(z, dtype)
    z = rng.normal(0, 1, (n, width)) * rng.choice([0.1, 1.0, 5.0], (n, 1))
    if regime == "dominant":
        z[np.arange(n), rng.integers(0, width, n)] += rng.uniform(5, 100, n)
    return rounded(z, dtype)


def blocks(dtype: str, *, rows: int, seed: int) -> Iterator[Block]:
    """Blocks of at least ``rows`` rows together: every regime at every width, with and without temperatures."""
    rng = np.random.Generator(np.random.Philox([seed, FORMATS[dtype].bits, FORMATS[dtype].precision]))
    drawn = 0
    while True:
        for hot in (False, True):
            for width, n in WIDTHS.items():
                for regime in REGIMES:
                    z = _draw(rng, regime, n, width, dtype)
                    # the most probable token half of the time: log-probs near 0 are where formulas differ
                    ids = np.where(rng.random(n) < 0.5, z.argmax(axis=1), rng.integers(0, width, n))
                    t = np.where(rng.random(n) < 0.5, rng.choice([0.6, 0.7, 1.3], n), np.exp2(rng.uniform(-4, 4, n)))
                    yield Block(
                        rows=(),
                        dtype=dtype,
                        temperature="per_token" if hot else "absent",
                        z=z,
                        ids=ids.astype(np.int64),
                        t=t if hot else np.ones(n),
                    )
                    drawn += n
                    if drawn >= rows:
                        return


def _extended(block: Block, contract: str) -> npt.NDArray[np.longdouble]:
    """The oracle's formulas in long double."""
    y = oracle.score(block).y.astype(np.longdouble)
    a = y - y.max(axis=1, keepdims=True)
    e = np.exp(a)
    s = e.sum(axis=1)
    if contract == "entropy":
        return np.asarray(np.log(s) - (e * a).sum(axis=1) / s)
    return np.asarray(a[np.arange(block.size), block.ids] - np.log(s))


def _judge(m: Measurement, block: Block, slack: Slack, exact_rows: int) -> Array:
    """error / allowed of every row, by the cheapest arithmetic that decides it; entered in ``slack``'s counts."""
    with np.errstate(all="ignore"):
        error = np.abs(m.got - m.want)
        open_ = np.isfinite(m.got) & (error + m.radius > m.allowed) & (error - m.radius <= m.allowed)
        slack.float64 += int((~open_).sum())
        ratios = np.where(error <= m.radius, 0.0, error / m.allowed)
    ratios[~open_] = severities(_part(m, ~open_))
    if EXTENDED_BITS >= 64 and open_.any():
        # The oracle's radius is at most proportional to its unit roundoff (gamma(k, u) is convex in u), so 2^-11 of it
        # belongs to a 64-bit significand; twice that covers the roundings of this very comparison.
        error_x = np.abs(m.got.astype(np.longdouble) - _extended(block, slack.contract))
        radius_x = m.radius * 2.0**-10
        decided = open_ & ((error_x + radius_x <= m.allowed) | (error_x - radius_x > m.allowed))
        ratios = np.where(open_, (error_x / m.allowed).astype(np.float64), ratios)
        # never let a rounding of the quotient cross the verdict
        inside = error_x <= m.allowed
        ratios = np.where(decided & inside, np.minimum(ratios, 1.0), ratios)
        ratios = np.where(decided & ~inside, np.maximum(ratios, np.nextafter(1.0, 2.0)), ratios)
        slack.extended += int(decided.sum())
        open_ = open_ & ~decided
    left = np.flatnonzero(open_)
    chosen, dropped = left[: max(exact_rows - slack.exact, 0)], left[max(exact_rows - slack.exact, 0) :]
    ratios[chosen] = severities(_part(m, chosen))
    ratios[dropped] = np.minimum(ratios[dropped], 1.0)
    slack.exact += len(chosen)
    slack.undecided += len(dropped)
    return ratios


def _part(m: Measurement, which: Any) -> Measurement:
    places = np.arange(m.got.size)[which]
    refine = m.refine
    return dataclasses.replace(
        m,
        got=m.got[places],
        want=m.want[places],
        allowed=m.allowed[places],
        radius=m.radius[places],
        rows=m.rows[places],
        refine=None if refine is None else lambda k: refine(int(places[k])),
    )


def measure_rows(
    implementation: Implementation, dtype: str, *, rows: int = 100_000, seed: int = 0, exact_rows: int = 20_000
) -> Iterator[Slack]:
    """Hold a token_logprobs or entropy implementation to its bound; yields one growing `Slack` after each block."""
    slack = Slack(contract=implementation.contract, implementation=implementation.name, dtype=dtype)
    started = time.perf_counter()
    for block in blocks(dtype, rows=rows, seed=seed):
        got = call(implementation, block, "cpu").values
        if implementation.contract == "entropy":
            exact, conditioning = oracle.entropy(block), oracle.entropy_conditioning(block)
            allowed = bounds.entropy(conditioning, implementation.algorithm, dtype)
        else:
            scored = oracle.score(block)
            exact, conditioning = scored.logprobs, scored.conditioning
            allowed = bounds.token_logprobs(conditioning, implementation.algorithm, dtype)
        ratios = _judge(within(got, exact, allowed, label="value"), block, slack, exact_rows)
        slack.record(ratios, block, Block.row)
        slack.rows += block.size
        slack.seconds = time.perf_counter() - started
        yield slack
    oracle.score.cache_clear()  # blocks are large, and nobody asks for them again
