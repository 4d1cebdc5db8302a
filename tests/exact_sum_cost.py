"""What exact sums cost: updates of the states against plain float64 sums of the same terms in the same process.

``python tests/exact_sum_cost.py`` prints nanoseconds a token (a median) and the size of a saved state.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from numerics import DivergenceState, MetricState, MismatchState
from numerics.reference.divergence import _TOKEN_TERMS
from numerics.reference.pairs import cast_pair


def plain(rollout: torch.Tensor, trainer: torch.Tensor) -> list[float]:
    """The token terms of a divergence, summed by torch in float64."""
    pair = cast_pair(rollout, trainer, None, compare_dtype=torch.float32)
    return [float(term(pair).sum()) for term in _TOKEN_TERMS.values()]


def nanoseconds(call: Callable[[], object], tokens: int, runs: int) -> float:
    """The median time of a call, a token."""
    call()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times) / tokens * 1e9


def main() -> None:
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; ns a token, ratio to plain float64 sums")
    print("| tokens | plain | MismatchState | DivergenceState | MetricState |")
    print("|---|---|---|---|---|")
    for rows, length in ((1, 1000), (100, 1000), (1000, 1000)):
        q = -5 * torch.rand(rows, length)
        p, n = q + 0.01 * torch.randn(rows, length), rows * length
        runs = 9 if n < 10**6 else 3
        base = nanoseconds(lambda q=q, p=p: plain(q, p), n, runs)
        cells = [f"{base:.0f}"]
        for make in (MismatchState, DivergenceState, MetricState):
            spent = nanoseconds(lambda make=make, q=q, p=p: make().update(q, p), n, runs)
            cells.append(f"{spent:.0f} ({spent / base:.1f}x)")
        print(f"| {n:,} | {' | '.join(cells)} |")
    print(f"saved MetricState of {n:,} tokens: {len(MetricState().update(q, p).to_json()):,} bytes of JSON")


if __name__ == "__main__":
    main()
