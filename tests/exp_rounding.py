"""Is float64's exp, rounded once more to float32, the correctly rounded exp of every float32? Measured on all of them.

``numerics.reference.mismatch`` computes probabilities that way, and ``docs/bounds.md`` states the result. Run by hand::

    python tests/exp_rounding.py [--ulps EVERY]

Every float32 with 2^-26 <= |x| and -104 <= x <= 89 is tried, both signs. Outside that range nothing is left to decide:
nearer to 0, exp x lies within 2^-25 of 1 and rounds to 1; below -104 it lies under 2^-150 and rounds to 0; above 89 it
overflows.

Double rounding can go wrong only where the float64 result lies so near to a midpoint of two float32 numbers that the
exact value may lie on its other side. If torch's exp is within 1 ulp, that is within 2^-52 of it, relatively. This
script collects all inputs within 2^-51, and decides those with mpmath at 60 digits. It also says how near the nearest
exact value comes to a midpoint, in float64 ulps: a float64 exp that errs by less is right on every input.

The premise is measured too: on every ``EVERY``-th input (64 by default; 1 is all of them) the float64 result is
compared with the C library's long double exp, where that has 64 bits of precision.
"""

from __future__ import annotations

import argparse
import fractions
import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from mpmath import MPContext

from numerics.formats import FORMATS, narrow

CHUNK = 1 << 22
WINDOW = 2.0**-51
SINGLE = FORMATS["float32"]
RANGES = {"negative": (-104.0, -(2.0**-26)), "positive": (2.0**-26, 89.0)}


def chunks(low: float, high: float) -> Iterator[npt.NDArray[np.float32]]:
    """All float32 numbers in [low, high], one sign, in pieces."""
    places = sorted(SINGLE.ordinal(abs(v)) for v in (low, high))
    sign = np.uint32(1 << 31 if low < 0 else 0)
    for start in range(places[0], places[1] + 1, CHUNK):
        stop = min(start + CHUNK, places[1] + 1)
        yield (np.arange(start, stop, dtype=np.uint32) | sign).view(np.float32)


def near_a_midpoint(wide: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Whether float64 numbers in [0, inf) lie within WINDOW (relative) of a midpoint of two float32 neighbours."""
    bits = wide.view(np.uint64)
    # normal: the 29 bits that float32 drops; 4 units of them are at least 2^-51 of the value
    dropped = (bits & np.uint64((1 << 29) - 1)).astype(np.int64)
    normal = np.abs(dropped - (1 << 28)) <= 4
    # subnormal: steps of 2^-149; the scaling and the difference are exact
    steps = np.where(wide < SINGLE.min_normal, wide, 0.0) / SINGLE.min_subnormal
    subnormal = np.abs(steps - np.floor(steps) - 0.5) <= WINDOW * steps
    return np.where(wide < SINGLE.min_normal, subnormal, normal)


def ulps_off(x: npt.NDArray[np.float32], wide: npt.NDArray[np.float64]) -> float:
    """The largest error of ``wide`` as exp x, in float64 ulps of the result, by the long double exp."""
    exact = np.exp(x.astype(np.longdouble))
    unit = np.spacing(wide).astype(np.longdouble)
    return float((np.abs(wide.astype(np.longdouble) - exact) / unit).max())


def ulps_from_a_midpoint(exact: Any) -> float:
    """How far an mpmath number lies from the nearest midpoint of two float32 neighbours, in float64 ulps."""
    near = SINGLE.round(exact)
    midpoints = [
        (fractions.Fraction(near) + fractions.Fraction(v)) / 2 for v in (SINGLE.next_down(near), SINGLE.next_up(near))
    ]
    unit = FORMATS["float64"].ulp(float(exact))
    return min(float(abs(exact - exact.context.mpf(m.numerator) / m.denominator) / unit) for m in midpoints)


def main() -> int:
    """Count the misrounded; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ulps", type=int, default=64, metavar="EVERY", help="measure the premise on every EVERY-th")
    every = parser.parse_args().ulps
    torch.set_num_threads(1)
    precise = np.finfo(np.longdouble).nmant >= 63
    mp = MPContext()
    mp.dps = 60
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}")
    wrong = 0
    for name, (low, high) in RANGES.items():
        began, tried, worst = time.monotonic(), 0, 0.0
        undecided: list[float] = []
        for x in chunks(low, high):
            wide = torch.exp(torch.from_numpy(x).to(torch.float64)).numpy()
            tried += x.size
            undecided += x[near_a_midpoint(wide)].tolist()
            if precise:
                worst = max(worst, ulps_off(x[::every], wide[::every]))
        got = narrow(torch.exp(torch.tensor(undecided, dtype=torch.float64)), torch.float32).tolist()
        exact = [mp.exp(mp.mpf(x)) for x in undecided]
        misrounded = [x for x, y, e in zip(undecided, got, exact, strict=True) if y != SINGLE.round(e)]
        nearest = min(map(ulps_from_a_midpoint, exact), default=math.inf)
        wrong += len(misrounded)
        print(
            f"{name}: {tried} inputs, {len(undecided)} within 2^-51 of a midpoint, {len(misrounded)} misrounded "
            f"{[x.hex() for x in misrounded]}"
        )
        print(f"  nearest to a midpoint: {nearest:.3f} float64 ulps; undecided: {' '.join(x.hex() for x in undecided)}")
        measured = f"at most {worst:.4f} ulps off (every {every})" if precise else "not measured, no 64-bit long double"
        print(f"  float64 exp: {measured}; {time.monotonic() - began:.0f} s")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
