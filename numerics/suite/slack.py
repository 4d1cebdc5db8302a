"""Are the bounds evidence? ``python -m numerics.suite.slack`` holds the built-in implementations to them, row by row.

A bound that is never approached proves nothing, one that is exceeded accuses honest code. So this prints the largest
and the median error / bound over many seeded rows, drawn by NumPy (Hypothesis is too slow for 100,000 rows, and a sharp
figure needs many). A row is decided by float64 and the oracle's radius, else in extended precision where the platform's
``longdouble`` has 64 bits or more, else by mpmath; none is left undecided until ``--exact-rows`` of those are spent.

Exit codes: 0 every row holds, 1 one does not, 2 bad input.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import numpy.typing as npt
import torch

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase, PairCase, PairRow
from numerics.suite import bounds, oracle
from numerics.suite.builtin import BUILTIN
from numerics.suite.contracts import call
from numerics.suite.implementation import Implementation
from numerics.suite.measure import Measurement, mp, severities, within
from numerics.suite.oracle_pairs import FIGURES, mismatch

__all__ = ["REGIMES", "Block", "Slack", "blocks", "main", "measure_pairs", "measure_rows"]

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


def _rounded(x: Array, dtype: str) -> Array:
    return torch.from_numpy(x).to(FORMATS[dtype].dtype).to(torch.float64).numpy()


def _draw(rng: np.random.Generator, regime: str, n: int, width: int, dtype: str) -> Array:
    """Logits [n, width] on the grid of ``dtype``."""
    if regime in ("equal", "near_ties", "offset"):
        # ties at 0 would have relative, not absolute, neighbours: bases stay off it
        exponent = rng.uniform(3, min(FORMATS[dtype].emax - 2, 20), n) if regime == "offset" else rng.uniform(-4, 4, n)
        base = np.exp2(exponent) * rng.choice([-1.0, 1.0], n)
        steps = rng.integers(0, {"equal": 1, "near_ties": 4, "offset": 6}[regime], (n, width))
        return _rounded(base[:, None] * (1 - 2 * FORMATS[dtype].u * steps), dtype)
    if regime == "gaps":
        z = -rng.uniform(0, 1, (n, width)) * rng.choice([1.0, 10.0, 120.0], (n, 1))
        z[np.arange(n), rng.integers(0, width, n)] = 0.0
        return _rounded(z, dtype)
    z = rng.normal(0, 1, (n, width)) * rng.choice([0.1, 1.0, 5.0], (n, 1))
    if regime == "dominant":
        z[np.arange(n), rng.integers(0, width, n)] += rng.uniform(5, 100, n)
    return _rounded(z, dtype)


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


# --- judging ------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Slack:
    """What one implementation's rows (or figures of pairs) came to."""

    contract: str
    implementation: str
    dtype: str
    rows: int = 0
    float64: int = 0
    extended: int = 0
    exact: int = 0
    undecided: int = 0
    over: int = 0
    largest: float = 0.0
    seconds: float = 0.0
    worst: str = ""
    ratios: list[Array] = dataclasses.field(default_factory=list, repr=False)

    @property
    def median(self) -> float:
        """The median error / bound."""
        return float(np.median(np.concatenate(self.ratios))) if self.ratios else math.nan

    def record(self, ratios: Array, case: Any) -> None:
        """Enter error / bound of every element of ``case``."""
        self.ratios.append(ratios)
        self.over += int((ratios > 1).sum())
        if ratios.size and ratios.max() > self.largest:
            self.largest, k = float(ratios.max()), int(ratios.argmax())
            if self.largest > 1:
                self.worst = repr(case.row(k) if isinstance(case, Block) else case)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        hidden = ("ratios",)
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in hidden}
        return {**plain, "median": self.median, "rows_per_second": self.rows / self.seconds if self.seconds else 0.0}


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
        slack.record(_judge(within(got, exact, allowed, label="value"), block, slack, exact_rows), block)
        slack.rows += block.size
        slack.seconds = time.perf_counter() - started
        yield slack
    oracle.score.cache_clear()  # blocks are large, and nobody asks for them again


def _pair_cases(dtype: str, *, pairs: int, seed: int) -> Iterator[PairCase]:
    """``pairs`` cases of about 50 tokens: engine noise, bfloat16 rounding, stale weights, near certainty."""
    rng = np.random.Generator(np.random.Philox([seed, 7, FORMATS[dtype].bits, FORMATS[dtype].precision]))
    for k in range(pairs):
        n = int(rng.integers(40, 61))
        q = -rng.exponential([0.5, 2.0, 1e-4][k % 3], n)
        noise = [rng.normal(0, 1e-6, n), rng.normal(0, 1e-2, n), rng.normal(0, 0.5, n), np.zeros(n)][k % 4]
        p = _rounded(np.minimum(q + noise * np.abs(q), 0.0), "bfloat16" if k % 4 == 3 else "float32")
        row = PairRow(tuple(_rounded(q, dtype).tolist()), tuple(p.tolist()), tuple((rng.random(n) < 0.9).tolist()))
        yield PairCase((row,), rollout_dtype=dtype)


def measure_pairs(implementation: Implementation, dtype: str, *, pairs: int = 2000, seed: int = 0) -> Iterator[Slack]:
    """Hold a mismatch implementation to the bounds of its figures; yields one growing `Slack` after each case."""
    slack = Slack(contract="mismatch", implementation=implementation.name, dtype=dtype)
    started = time.perf_counter()
    for case in _pair_cases(dtype, pairs=pairs, seed=seed):
        fields, exact = call(implementation, case, "cpu").fields, mismatch(case)
        allowed = exact.allowed(implementation.algorithm)
        ratios = []
        for name in FIGURES:
            # what is not returned, and what nothing can be promised about, is no evidence
            if (
                name not in fields
                or not math.isfinite(allowed[name])
                or (name.endswith("pearson") and allowed[name] >= 2)
            ):
                continue
            want, got = exact.figures[name], float(fields[name])
            if not mp.isfinite(want) or not math.isfinite(got):
                ratios.append(
                    0.0 if mp.isnan(want) == math.isnan(got) and (mp.isnan(want) or want == got) else math.inf
                )
                continue
            error, bound = abs(mp.mpf(got) - want), mp.mpf(allowed[name])
            ratios.append(0.0 if error == 0 else math.inf if bound == 0 else float(error / bound))
        slack.record(np.array(ratios), case)
        slack.rows, slack.exact = slack.rows + 1, slack.exact + 1
        slack.seconds = time.perf_counter() - started
        yield slack


# --- the command --------------------------------------------------------------------------------------------

_COLUMNS = ("contract", "implementation", "dtype", "rows", "max err/bound", "median", "over", "float64", "extended")
_HEADER = (*_COLUMNS, "mpmath", "undecided", "seconds", "rows/s")


def _cells(s: Slack) -> tuple[str, ...]:
    numbers = (f"{s.largest:.4f}", f"{s.median:.4f}", s.over, s.float64, s.extended, s.exact, s.undecided)
    rate = s.rows / s.seconds if s.seconds else 0.0
    return (s.contract, s.implementation, s.dtype, str(s.rows), *map(str, numbers), f"{s.seconds:.1f}", f"{rate:.0f}")


def _table(found: Iterable[Slack]) -> str:
    lines = [_HEADER, *map(_cells, found)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(_HEADER))]
    return "\n".join(
        "  ".join(x.ljust(w) if k < 3 else x.rjust(w) for k, (x, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def _watched(steps: Iterable[Slack], name: str, total: int) -> Slack:
    """The last of ``steps``; a moving line on a terminal's standard error."""
    shown, last, moving = 0.0, None, sys.stderr.isatty()
    for last in steps:
        if moving and time.monotonic() - shown > 0.2:
            shown = time.monotonic()
            sys.stderr.write(f"\r\x1b[K{name}: {last.rows}/{total}, largest error/bound {last.largest:.3f}")
            sys.stderr.flush()
    if moving:
        sys.stderr.write("\r\x1b[K")
    assert last is not None
    return last


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--rows", type=click.IntRange(1), default=100_000, show_default=True, help="Rows per line of the table.")
@click.option("--pairs", type=click.IntRange(0), default=2000, show_default=True, help="Mismatch cases of ~50 tokens.")
@click.option("--impl", "names", multiple=True, type=click.Choice(list(BUILTIN)), help="Only this one (repeatable).")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(list(FORMATS)), help="Only this one (repeatable).")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Other rows.")
@click.option(
    "--exact-rows",
    type=click.IntRange(0),
    default=20_000,
    show_default=True,
    help="At most so many rows by mpmath for each line; further ones are counted as undecided.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    rows: int, pairs: int, names: tuple[str, ...], dtypes: tuple[str, ...], seed: int, exact_rows: int, as_json: bool
) -> None:
    """Largest and median error / bound of the built-in implementations, over many seeded rows.

    Exits with 1 if a row is over its bound.
    """
    found: list[Slack] = []
    try:
        for implementation in (x for name in names or BUILTIN for x in BUILTIN[name]):
            for dtype in dtypes or FORMATS:
                title = f"{implementation.contract} {implementation.name} {dtype}"
                if implementation.contract in ("token_logprobs", "entropy"):
                    options: dict[str, int] = {"rows": rows, "seed": seed, "exact_rows": exact_rows}
                    found.append(_watched(measure_rows(implementation, dtype, **options), title, rows))
                elif implementation.contract == "mismatch" and pairs:
                    found.append(_watched(measure_pairs(implementation, dtype, pairs=pairs, seed=seed), title, pairs))
    except KeyboardInterrupt:
        click.echo("interrupted; so far:", err=True)
    click.echo(json.dumps([s.as_dict() for s in found], indent=1) if as_json else _table(found))
    for s in found:
        if s.over:
            click.echo(
                f"{s.contract} {s.implementation} {s.dtype}: {s.over} over the bound, the worst {s.worst}", err=True
            )
    sys.exit(1 if any(s.over for s in found) else 0)


if __name__ == "__main__":
    main()
