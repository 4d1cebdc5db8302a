"""Special cases: regimes that must be met in every run, not left to luck. Each is one idea, with its source."""

from __future__ import annotations

import math

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase, PairCase, PairRow, Tail
from numerics.suite.property import Domain

__all__ = ["logits", "nonfinite_logits", "pairs"]


def logits(domain: Domain) -> list[LogitsCase]:
    """Finite rows and rows with holes, for every property of log-probs and entropies."""
    fmt = FORMATS[domain.dtype]
    hot = "float" if "float" in domain.temperature_forms else "absent"

    def row(*values: float, token: int = 0, temperature: float = 1.0) -> Logits:
        return Logits(tuple(fmt.round(v) for v in values), token, temperature)

    big = fmt.round(min(3e4, fmt.max / 4))
    return [
        LogitsCase((row(-1.25),), domain.dtype),  # V = 1
        LogitsCase((row(0.0, 0.0, 0.0, 0.0, token=3),), domain.dtype),
        # exp underflows in float32 at a gap of 104: log(softmax) is -inf there
        LogitsCase((row(0.0, -104.0, token=1), row(0.0, -96.0, token=1), row(0.0, -110.0, token=0)), domain.dtype),
        # certain and nearly certain tokens
        LogitsCase((row(30.0, 0.0, 0.0), row(17.0, 0.0, 1.0), row(9.0, 0.0, 0.0)), domain.dtype),
        # x - logsumexp(x) loses digits with an offset (frameworks.md 55; mlx#4188); overflow without a maximum shift
        LogitsCase((row(big, big, token=1), row(-big, -big, token=0)), domain.dtype),
        LogitsCase((row(89.0, 0.0), row(-120.0, -120.0)), domain.dtype),
        LogitsCase((row(0.0, -math.inf, 0.5, token=1), row(0.0, 0.25, -math.inf)), domain.dtype),  # an impossible token
        LogitsCase((row(0.0, -math.inf, 0.5), row(-math.inf, 1.0, -math.inf, token=1)), domain.dtype),
        LogitsCase((row(2.0, 0.0, -1.0, temperature=0.5),), domain.dtype, temperature=hot),  # verl#4162
        LogitsCase((row(20.0, 0.0, token=1, temperature=0.7),), domain.dtype, temperature=hot),  # bf16(0.7) != 0.7
        LogitsCase((row(1.0, 2.0, 3.0, token=2, temperature=0.001),), domain.dtype, temperature=hot),
        LogitsCase((row(1.0, 2.0, 3.0, token=0, temperature=1e6),), domain.dtype, temperature=hot),
        LogitsCase((row(0.5, token=0), row(8.0, token=0)), domain.dtype, tail=Tail(1000, 3)),
    ]


def nonfinite_logits(domain: Domain) -> list[LogitsCase]:
    """NaN, +inf, only -inf, and a chosen -inf, beside a sound row."""
    nan, inf = math.nan, math.inf
    return [
        LogitsCase(tuple(Logits(v, t) for v, t in rows), domain.dtype)
        for rows in (
            [((0.0, nan, 1.0), 0), ((0.0, 1.0, 2.0), 1)],
            [((0.0, inf, 1.0), 0), ((0.0, inf, 1.0), 1), ((0.0, 1.0, 2.0), 1)],
            [((-inf, -inf), 0), ((0.0, 1.0), 1)],  # allennlp#890: log(1/2) for an impossible token
            [((0.0, -inf), 1), ((0.0, 1.0), 1)],
            [((-inf, -inf, -inf, -inf, 10.0, -inf), 4)],  # flash-attention#1930
            [((inf, inf), 0), ((nan, -inf), 1)],
            [((-inf,), 0), ((3.0,), 0)],
        )
    ]


def pairs(domain: Domain) -> list[PairCase]:
    """Log-prob pairs for every property of mismatch; the rollout in the domain's dtype, the trainer in float32."""
    fmt = FORMATS[domain.dtype]
    nan, inf = math.nan, math.inf

    def case(*tokens: tuple[float, float], valid: tuple[int, ...] | None = None) -> PairCase:
        kept = tuple(bool(v) for v in valid) if valid is not None else (True,) * len(tokens)
        row = PairRow(tuple(fmt.round(q) for q, _ in tokens), tuple(p for _, p in tokens), kept)
        return PairCase((row,), rollout_dtype=domain.dtype)

    one_ulp = (-0.10000000149011612, -0.10000000894069672)
    return [
        case(one_ulp),  # probabilities round to the same float32
        case(one_ulp, one_ulp, (-1.0, -1.0)),
        case((-0.5, -0.5), (-1.0, -1.5), (nan, 1e30), valid=(1, 1, 0)),
        case((-0.5, -0.25), (-2.0, -1.0), valid=(0, 0)),
        case(),
        case((-1.0, -2.0)),
        case((-0.5, -0.5), (-0.5, -0.5), (-0.5, -0.5)),  # constant: no correlation
        case((-0.5, -0.75), (-0.5, -1.0), (-0.5, -2.0)),
        case((-20.0, -40.0), (-0.5, -0.5)),  # probability differences cannot see the tail
        case((-inf, -inf), (-1.0, -1.0)),
        case((-inf, -1.0), (-1.0, -1.0)),
        case((nan, -1.0), (-1.0, -1.0)),
        case((nan, nan), (-1.0, -1.5)),
        case((0.0, -0.0), (-0.0, 0.0)),
        case((0.0, -1e-45), (-1e-45, -3e-45)),
        case((1.0, 95.0)),
        case(*[(-0.5 - k / 16, -0.5 - k / 16 - 2.0**-12) for k in range(24)]),
        case(*[(-1.0, -1.0 - (2.0**-20) * (k % 2)) for k in range(12)]),
        # a large mean and a small deviation: E[x^2] - E[x]^2 has lost it in float32
        case(*[(-1.0, -2.0 - (2.0**-12) * (k % 2)) for k in range(12)]),
        case(*[(-0.5, -0.5)] * 300, (-0.5, -0.75)),  # a counter in bfloat16 stops at 256
    ]
