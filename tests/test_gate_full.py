"""Whole distributions: passed exactly if every valid row has the same bits; wrong comparisons are told apart."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import numerics
from numerics import FullVerdict, gate_full
from numerics.tools.gate.full import as_json

_SETTINGS = settings(deadline=None, database=None, derandomize=True)
V = 9
Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Two logits tensors [n, V] that differ in a few places, a mask, and how many rows may differ."""
    rows = draw(st.integers(0, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    rollout = torch.randn(rows, V, generator=generator)
    rollout[:, 1] = 0.0
    rollout[:, 2] = rollout[:, 3] = -20.0
    trainer = rollout.clone()
    for row in draw(st.lists(st.integers(0, rows - 1), max_size=2)) if rows else []:
        kind = draw(st.sampled_from(["ulp", "sign", "offset", "swap", "nan", "both nan", "both -inf"]))
        place = draw(st.sampled_from([0, V - 1, 4]))
        if kind == "ulp":
            trainer[row, place] = torch.nextafter(trainer[row, place], torch.tensor(9.0))
        elif kind == "sign":
            trainer[row, 1] = -0.0
        elif kind == "offset":
            trainer[row] += 0.5
        elif kind == "swap":
            trainer[row, 3] = -20.25  # a token that no one samples
        elif kind == "nan":
            trainer[row, place] = math.nan
        elif kind == "both nan":
            trainer[row, place] = rollout[row, place] = math.nan
        else:
            trainer[row] = rollout[row] = -math.inf
    mask = torch.tensor([draw(st.sampled_from([1, 1, 1, 0])) for _ in range(rows)])
    return rollout, trainer, mask, draw(st.integers(0, 1))


def expected(case: Case) -> set[str]:
    """The codes, from the bits."""
    rollout, trainer, mask, allow = case
    rows = [i for i in range(len(mask)) if mask[i]]
    bits = [x.view(torch.int32).masked_fill(x.isnan(), 1 << 30) for x in (rollout, trainer)]
    codes = set()
    if sum(not torch.equal(bits[0][i], bits[1][i]) for i in rows) > allow:
        codes.add("mismatch")
    if any(x[i].isnan().any() or x[i].isneginf().all() for i in rows for x in (rollout, trainer)):
        codes.add("nonfinite")
    if not rows:
        codes.add("all_masked" if len(mask) else "nothing_compared")
    return codes


Gate = Callable[..., set[str]]


def right(rollout: torch.Tensor, trainer: torch.Tensor, mask: torch.Tensor, **options: Any) -> set[str]:
    return {reason.code for reason in gate_full(rollout, trainer, mask, **options).reasons}


def hold(gate: Gate) -> None:
    @settings(_SETTINGS, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False)
    @given(cases())
    def rows_have_the_same_bits(case: Case) -> None:
        rollout, trainer, mask, allow = case
        # a chunk of one row: what is wrong only at its end would be met
        assert gate(rollout, trainer, mask, allow_rows=allow, chunk_bytes=1) == expected(case)

    rows_have_the_same_bits()


def test_the_gate_holds() -> None:
    hold(right)


def _on(change: Callable[[torch.Tensor], torch.Tensor]) -> Gate:
    return lambda q, p, mask, **options: right(change(q), change(p), mask, **options)


def _rows(change: Callable[[torch.Tensor], torch.Tensor]) -> Gate:
    return lambda q, p, mask, **options: right(change(q), change(p), change(mask), **options)


def _decided_by(agree: Callable[[FullVerdict], bool]) -> Gate:
    """The mismatch decided by a figure instead of the bits."""

    def gate(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor, **options: Any) -> set[str]:
        verdict = gate_full(q, p, mask, **options)
        codes = {reason.code for reason in verdict.reasons} - {"mismatch"}
        return codes | (set() if agree(verdict) else {"mismatch"})

    return gate


def _sampled_only(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor, **options: Any) -> set[str]:
    best = torch.nan_to_num(q).argmax(-1, keepdim=True)
    return right(q.gather(-1, best), p.gather(-1, best), mask, **options)


WRONG: dict[str, Gate] = {
    "the distribution instead of the bits": _on(lambda z: torch.log_softmax(z, -1)),
    "bfloat16": _on(lambda z: z.bfloat16()),
    "an offset is taken off": _on(lambda z: z - z[:, :1]),
    "the sign of zero is lost": _on(lambda z: z + 0.0),
    "the sampled token alone": _sampled_only,
    "the last column is dropped": _on(lambda z: z[:, :-1]),
    "the first column is dropped": _on(lambda z: z[:, 1:]),
    "the last row is dropped": _rows(lambda x: x[:-1]),
    "improbable tokens are cut": _on(lambda z: z.masked_fill(z < -15, -math.inf)),
    "NaN is replaced": _on(torch.nan_to_num),
    "the mask is ignored": lambda q, p, mask, **options: right(q, p, torch.ones_like(mask), **options),
    "one more row is allowed": lambda q, p, mask, allow_rows, **o: right(q, p, mask, allow_rows=allow_rows + 1, **o),
    "no row is allowed": lambda q, p, mask, allow_rows, **o: right(q, p, mask, **o),
    "a total variation of 0": _decided_by(lambda v: not v.raw.tv_max > 0),
    "one arg-max everywhere": _decided_by(lambda v: v.raw.argmax_agree_fraction == 1),
    "one top 10 everywhere": _decided_by(lambda v: v.raw.top_k_overlap_mean == 1),
    "a divergence below 1e-6": _decided_by(lambda v: not v.raw.kl_rollout_trainer_max > 1e-6),
    "non-finite rows pass": lambda q, p, mask, **o: right(q, p, mask, **o) - {"nonfinite"},
    "all masked passes": lambda q, p, mask, **o: right(q, p, mask, **o) - {"all_masked"},
    "nothing compared passes": lambda q, p, mask, **o: right(q, p, mask, **o) - {"nothing_compared"},
}


@pytest.mark.parametrize("gate", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_gate_is_killed(gate: Gate) -> None:
    with pytest.raises(AssertionError):
        hold(gate)


# --- what it says -------------------------------------------------------------------------------------------

Z = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))


def test_the_figures_are_those_of_full_divergence() -> None:
    other = Z.clone()
    other[2, 17] += 0.25
    verdict = gate_full(Z, other, temperature=0.7)
    assert repr(verdict.raw.as_dict()) == repr(numerics.full_divergence(Z, other).as_dict())
    assert verdict.processed is not None
    assert repr(verdict.processed.as_dict()) == repr(numerics.full_divergence(Z, other, temperature=0.7).as_dict())
    assert (verdict.differing_rows, verdict.first, verdict.places) == (1, ((2,),), 4)
    assert "token 17 of row 2" in verdict.reasons[0].message
    assert gate_full(Z, other, temperature=1.0).processed is None


def test_an_offset_is_one_distribution_with_other_bits() -> None:
    verdict = gate_full(Z, Z + 8.0)
    assert not verdict.passed
    assert verdict.raw.argmax_agree_fraction == 1
    assert verdict.raw.tv_max < 2.0**-20  # what adding 8 in float32 rounds away


def test_values_of_another_format_are_equal() -> None:
    half = Z.bfloat16()
    assert gate_full(half, half.float()).passed
    assert not gate_full(Z, half).passed


def test_shared_storage_and_bfloat16() -> None:
    assert [r.code for r in gate_full(Z, Z).reasons] == ["shared_storage"]
    half = Z.bfloat16()
    assert gate_full(half, half.clone()).passed
    assert [r.code for r in gate_full(half, half.clone(), strict_dtype=True).reasons] == ["both_bf16"]


def test_shapes_with_more_axes() -> None:
    q = Z.reshape(2, 2, 50)
    p = q.clone()
    p[1, 0, 3] += 1
    verdict = gate_full(q, p, torch.ones(2, 2))
    assert verdict.first == ((1, 0),)


def test_json_is_strict() -> None:
    record = json.loads(as_json(gate_full(Z, torch.full_like(Z, math.nan))), parse_constant=pytest.fail)
    assert record["raw"]["tv_max"] == "nan"
    assert [r["code"] for r in record["reasons"]] == ["mismatch", "nonfinite"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allow_rows": -1}, "allow_rows is -1; it must be a number of rows"),
        ({"allow_rows": 1.0}, r"allow_rows is 1\.0"),
        ({"temperature": 0.0}, r"temperature is 0\.0"),
        ({"overlap_k": 0}, "overlap_k is 0"),
        ({"mask": torch.ones(3)}, "mask has shape"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gate_full(Z, Z.clone(), **options)
