"""The definition of the bits: the constants that every backend shares. ``docs/bits.md`` derives them.

A row of logits is upcast to float32 and divided by a float32 temperature (one correctly rounded division each). Its
columns lie on a fixed grid of `CHUNK`; a chunk gives its maximum, how often it has it, and the sum of the exponentials
of the others, in `LANES` lanes and a fixed tree. Chunks are merged in column order in float64; one rounding ends it.
Nothing depends on the batch, on threads, or on an instruction set: every operation is +, -, x, /, a fused multiply-add
that is written as one, or a comparison, and no library computes an exponential or a logarithm.
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "CHUNK",
    "EXP64",
    "LANES",
    "LN2_HIGH",
    "LN2_LOW",
    "LOG2E",
    "LOG2E_HIGH",
    "LOG2E_LOW",
    "LOWEST",
    "MAGIC",
    "POLYNOMIAL",
    "SCALE",
    "SERIES",
]

#: columns of a chunk, on the grid of global vocabulary positions
CHUNK = 4096
#: partial sums of a chunk; column j of a chunk goes to lane j mod LANES, in order
LANES = 128
#: exponentials carry a factor 2^SCALE, so that e^-128 is a normal float32
SCALE = 64
#: a token further below its chunk's maximum adds exactly 0: e^-128 is below every float32
LOWEST = np.float32(-128.0)
#: 1.5 * 2^23 + SCALE: adding it rounds a float32 to an integer n, and n + SCALE then stands in the low bits
MAGIC = np.float32(12582912.0 + SCALE)
#: log2(e) as the sum of two float32
LOG2E_HIGH = np.float32(1.4426950216293335)
LOG2E_LOW = np.float32(1.925963033500011e-08)
#: 2^f on [-1/2, 1/2], highest power first: relative least squares at 200 Chebyshev nodes, from the constant up, each
#: coefficient rounded to float32 before the next are fitted; 3.6e-9 off (tests/test_kernels_specification.py)
POLYNOMIAL = tuple(
    np.float32(c)
    for c in (
        0.00015238006017170846,
        0.0013391136890277267,
        0.009618841111660004,
        0.055503591895103455,
        0.24022644758224487,
        0.6931471824645996,
        1.0,
    )
)

#: float64: log2(e), and ln 2 as two numbers, the first with 32 trailing zeros so that n times it is exact
LOG2E = 1.4426950408889634
LN2_HIGH = 0.6931471803691238
LN2_LOW = 1.9082149292705877e-10
#: e^r on [-ln2/2, ln2/2], highest power first: 1/13!, ..., 1
EXP64 = tuple(1.0 / math.factorial(k) for k in range(13, -1, -1))
#: artanh s = s (1 + s^2/3 + s^4/5 + ...), highest power first, for abs(s) <= 3 - 2 sqrt 2
SERIES = tuple(1.0 / k for k in range(25, 0, -2))
