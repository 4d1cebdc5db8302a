"""Whole distributions: hand-worked rows, chunks, memory, errors."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import pytest
import torch

import numerics
from numerics import full_divergence

INF, NAN, LN2 = math.inf, math.nan, math.log(2)


def logs(*probs: float) -> list[float]:
    return [math.log(p) if p else -INF for p in probs]


def run(q: list[list[float]], p: list[list[float]], **options: Any) -> numerics.FullDivergence:
    return full_divergence(torch.tensor(q, dtype=torch.float64), torch.tensor(p, dtype=torch.float64), **options)


def test_two_tokens_by_hand() -> None:
    got = run([logs(0.5, 0.5)], [logs(0.75, 0.25)])
    m = (0.625, 0.375)
    jsd = 0.5 * (
        0.5 * math.log(0.5 / m[0])
        + 0.5 * math.log(0.5 / m[1])
        + 0.75 * math.log(0.75 / m[0])
        + 0.25 * math.log(0.25 / m[1])
    )
    assert got.tv_mean == pytest.approx(0.25, rel=2**-50)
    assert got.kl_rollout_trainer_mean == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(2), rel=2**-49)
    assert got.kl_trainer_rollout_mean == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5), rel=2**-49)
    assert got.jsd_mean == pytest.approx(jsd, rel=2**-48)
    assert got.logprob_gap_max == pytest.approx(LN2, rel=2**-50)
    assert (got.logprob_gap_row, got.logprob_gap_token, got.top_k_overlap_mean) == (0, 1, 1.0)


def test_supports_that_do_not_cover() -> None:
    got = run([logs(0.5, 0.5, 0.0)], [logs(0.5, 0.0, 0.5)])
    assert got.tv_mean == pytest.approx(0.5, rel=2**-50)
    assert got.kl_rollout_trainer_mean == got.kl_trainer_rollout_mean == got.logprob_gap_max == INF
    assert got.jsd_mean == pytest.approx(LN2 / 2, rel=2**-50)
    assert got.logprob_gap_token == 1
    apart = run([logs(1.0, 0.0)], [logs(0.0, 1.0)])
    assert (apart.tv_mean, apart.argmax_agree_fraction) == (1.0, 0.0)
    assert apart.jsd_mean == pytest.approx(LN2, rel=2**-50)


def test_rows_that_are_no_distribution_are_counted_and_show() -> None:
    got = run([[0.0, NAN], [INF, 0.0], [-INF, -INF], [0.0, 1.0]], [[0.0, 0.0]] * 3 + [[0.0, 1.0]])
    assert got.nonfinite_count == 3
    assert math.isnan(got.tv_mean)
    assert math.isnan(got.tv_max)
    assert got.rows["gap_token"].tolist() == [-1, -1, -1, 0]
    assert (got.logprob_gap_row, got.logprob_gap_token) == (-1, -1)
    assert got.bit_equal_count == 1


def test_nearly_equal_rows_keep_their_digits() -> None:
    got = run([[0.0, 0.0]], [[0.0, 1e-9]])
    assert got.kl_rollout_trainer_mean == pytest.approx(1e-18 / 8, rel=1e-8)
    assert got.jsd_mean == pytest.approx(1e-18 / 32, rel=1e-8)
    assert got.tv_mean == pytest.approx(1e-9 / 4, rel=1e-8)


def test_a_token_that_is_not_covered_counts_however_small() -> None:
    got = run([[0.0, -800.0]], [[0.0, -INF]])
    assert (got.kl_rollout_trainer_mean, got.kl_trainer_rollout_mean, got.logprob_gap_max) == (INF, 0.0, INF)
    assert run([[0.0, -INF]], [[0.0, -800.0]]).kl_trainer_rollout_mean == INF
    deep = run([[0.0, -800.0]], [[0.0, -1e300]]).kl_rollout_trainer_mean  # e^-800 1e300
    assert deep == pytest.approx(math.exp(300 * math.log(10) - 800), rel=1e-12)


def test_near_certain_rows_keep_their_digits() -> None:
    got = run([[0.0, -45.0]], [[0.0, -40.0]])
    assert got.tv_mean == pytest.approx(math.exp(-40) - math.exp(-45), rel=1e-14)
    assert got.kl_rollout_trainer_mean == pytest.approx(math.exp(-40) - 6 * math.exp(-45), rel=1e-14)


def test_far_below_the_range_is_no_removed_token() -> None:
    got = run([[0.0, -1e308]], [[0.0, -INF]], temperature=1e-3)
    assert (got.nonfinite_count, got.kl_rollout_trainer_mean) == (0, INF)
    steep = run([[1e308, -1e308]], [[1e308, 1e308]])
    assert (steep.tv_mean, steep.kl_trainer_rollout_mean > 1e307) == (0.5, True)


def test_overlap_breaks_ties_by_the_lowest_id_and_caps_k() -> None:
    q, p = [[1.0, 1.0, 1.0, 0.0]], [[0.0, 1.0, 1.0, 1.0]]
    assert [run(q, p, overlap_k=k).top_k_overlap_mean for k in (1, 2, 3, 4, 9)] == [0.0, 0.5, 2 / 3, 1.0, 1.0]
    assert run(q, p, overlap_k=9).overlap_k == 4


def test_masked_rows_are_not_read_and_hold_fillers() -> None:
    q = torch.tensor([[[0.0, 1.0], [NAN, INF]]])
    got = full_divergence(q, torch.zeros(1, 2, 2), torch.tensor([[1, 0]]))
    assert (got.valid_count, got.nonfinite_count) == (1, 0)
    assert all(values.shape == (1, 2) for values in got.rows.values())
    assert [got.rows[n][0, 1].item() for n in ("tv", "gap_token", "bit_equal")] == [0.0, -1, False]
    nothing = full_divergence(q, q, torch.zeros(1, 2))
    assert (nothing.valid, nothing.valid_count) == (0, 0)
    assert math.isnan(nothing.tv_max)


def test_temperature_divides_both_sides() -> None:
    q, p = [[0.0, 2.0]], [[1.0, 2.0]]
    halved = run([[0.0, 1.0]], [[0.5, 1.0]])
    assert run(q, p, temperature=2.0).kl_rollout_trainer_mean == halved.kl_rollout_trainer_mean


def test_chunks_change_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(17, 33, generator=generator)
    p = q + 0.01 * torch.randn(17, 33, generator=generator)
    whole = full_divergence(q, p)
    for chunk_bytes in (1, 32 * 8 * 33 * 2, 10**5):
        assert full_divergence(q, p, chunk_bytes=chunk_bytes).as_dict() == whole.as_dict()


_MEMORY = """
import resource, torch
from numerics import full_divergence
rows, width = 256, 20000
q = torch.randn(rows, width); p = q + 0.01
full_divergence(q[:2], p[:2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
full_divergence(q, p, chunk_bytes=1 << 24, overlap_k=OVERLAP)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


@pytest.mark.parametrize("overlap", [10, 20000])
def test_extra_memory_is_one_chunk(overlap: int) -> None:
    """Float64 copies of both sides would be 82 MB; a chunk is 16 MiB, and the allocator may take as much again."""
    script = _MEMORY.replace("OVERLAP", str(overlap))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 2 * (1 << 24)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            (torch.zeros(2, 3), torch.zeros(2, 4)),
            {},
            ValueError,
            r"rollout_logits has shape \(2, 3\) but trainer_logits",
        ),
        ((torch.zeros(2, 0), torch.zeros(2, 0)), {}, ValueError, "its last axis must hold a token"),
        ((torch.zeros(2, 3).long(), torch.zeros(2, 3)), {}, TypeError, "rollout_logits has dtype torch.int64"),
        ((torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3)), {}, ValueError, "mask has shape"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"overlap_k": 0}, ValueError, "overlap_k is 0"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"chunk_bytes": 1.5}, ValueError, "chunk_bytes is 1.5"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"temperature": 0.0}, ValueError, "temperature is 0.0"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"temperature": 10**400}, ValueError, "it must be finite and > 0"),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), {"temperature": "1"}, TypeError, "must be a number, got str"),
    ],
)
def test_bad_input(arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        full_divergence(*arguments, **options)
