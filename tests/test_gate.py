"""The gate's verdict: held to a count of our own, and every wrong gate is told apart from the right one."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import numerics
from numerics import Declared, GateFailure, assert_no_mismatch
from numerics.tools.gate import judge
from numerics.tools.gate.report import as_github, as_json, as_text
from numerics.tools.gate.tokens import KEPT
from numerics.tools.gate.verdict import CODES, Rules

DATA = Path(__file__).parent / "data" / "rollouts"
_SETTINGS = settings(deadline=None, database=None, derandomize=True)
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

# --- batches, and what is right -----------------------------------------------------------------------------

_ONE = -1.0
_UP = struct.unpack("<f", struct.pack("<I", 0xBF7FFFFF))[0]  # the float32 neighbour of -1 towards 0
#: pairs (rollout, trainer): equal, one ULP, two zeros, below float32's resolution, coarse, and what is not finite
_PAIRS = st.sampled_from(
    [
        *[(v, v) for v in (_ONE, -0.5, 0.0, -1e-30, -30.0)],
        (_ONE, _UP),
        (_UP, _ONE),
        (0.0, -0.0),
        (_ONE, -1.0 - 2.0**-40),
        (-1.0 - 2.0**-40, -1.0 - 2.0**-40),
        (-0.5, -0.75),
        (-1e-30, -2e-30),
        (-40.0, -41.0),
        (math.nan, math.nan),
        (math.nan, _ONE),
        (_ONE, -math.inf),
        (-math.inf, -math.inf),
    ]
)
_BITS = st.sampled_from([(0.0, -0.0), (0.0, 0.0), (math.nan, math.nan)])  # where values and bits disagree
_EQUAL = st.sampled_from([(v, v) for v in (_ONE, -0.5, -0.25)])


@dataclass(frozen=True)
class Batch:
    rows: tuple[tuple[tuple[float, float, bool], ...], ...]
    rollout: str
    trainer: str
    masked: bool
    rules: dict[str, Any]

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        shape = (len(self.rows), len(self.rows[0]) if self.rows else 0)
        table = np.array([list(row) for row in self.rows], dtype=object).reshape(*shape, 3)
        sides = [
            torch.tensor(table[..., i].astype(np.float64)).to(DTYPES[name])
            for i, name in enumerate((self.rollout, self.trainer))
        ]
        mask = torch.tensor(table[..., 2].astype(bool)) if self.masked else None
        return sides[0], sides[1], mask


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    width = draw(st.integers(0, 4))
    pairs = draw(st.sampled_from([_PAIRS, _BITS, _EQUAL]))
    valid = draw(st.sampled_from([st.booleans(), st.just(True), st.just(False)]))
    cell = st.tuples(pairs, valid).map(lambda c: (*c[0], c[1]))
    rows = draw(st.lists(st.tuples(*[cell] * width), min_size=1, max_size=3))
    rules = draw(
        st.fixed_dictionaries(
            {
                "allow": st.integers(0, 2),
                "bits": st.booleans(),
                "allow_nonfinite": st.sampled_from([0, 1, 9]),
                "strict_dtype": st.booleans(),
                "compare_dtype": st.sampled_from([torch.float32, torch.float64]),
            }
        )
    )
    dtypes = st.sampled_from(["float32", "float32", "float64", "bfloat16"])
    return Batch(tuple(rows), draw(dtypes), draw(dtypes), draw(st.booleans()), rules)


def expected(batch: Batch) -> tuple[set[str], int]:
    """The codes and the count, in NumPy scalars, by the words of the documentation."""
    rules, codes = batch.rules, set()
    into: Any = np.float32 if rules["compare_dtype"] == torch.float32 else np.float64
    bits: Any = np.uint32 if into is np.float32 else np.uint64
    rollout, trainer, _ = batch.tensors()
    count = nonfinite = narrowed = valid = places = 0
    for i, row in enumerate(batch.rows):
        for j, (_, _, ok) in enumerate(row):
            places += 1
            if batch.masked and not ok:
                continue
            valid += 1
            given_pair = [np.float64(x[i, j].double().item()) for x in (rollout, trainer)]
            q, p = (into(x) for x in given_pair)
            narrowed += sum(not (np.isnan(x) or np.float64(y) == x) for x, y in zip(given_pair, (q, p), strict=True))
            nonfinite += not (np.isfinite(q) and np.isfinite(p))
            if rules["bits"]:
                count += bool(q.view(bits) != p.view(bits)) and not (np.isnan(q) and np.isnan(p))
            else:
                count += not bool(q == p)
    if count > rules["allow"]:
        codes.add("mismatch")
    if nonfinite > rules["allow_nonfinite"]:
        codes.add("nonfinite")
    if narrowed:
        codes.add("narrowed")
    if places == 0:
        codes.add("nothing_compared")
    elif valid == 0:
        codes.add("all_masked")
    if rules["strict_dtype"] and batch.rollout == batch.trainer == "bfloat16":
        codes.add("both_bf16")
    return codes, count


Judge = Callable[..., set[str]]


def right(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor | None, **rules: Any) -> set[str]:
    return {reason.code for reason in judge(q, p, mask, **rules).reasons}


def hold(gate: Judge) -> None:
    """The property that every gate is held to: the reasons against a batch are the expected ones."""

    @settings(_SETTINGS, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)
    @given(batches())
    def verdict_is_the_count(batch: Batch) -> None:
        assert gate(*batch.tensors(), **batch.rules) == expected(batch)[0]

    verdict_is_the_count()


def test_the_gate_holds() -> None:
    hold(right)


@given(batches())
@settings(_SETTINGS, max_examples=200)
def test_the_count_is_the_references(batch: Batch) -> None:
    q, p, mask = batch.tensors()
    verdict = judge(q, p, mask, **batch.rules)
    found = numerics.mismatch(q, p, mask, compare_dtype=batch.rules["compare_dtype"])
    assert repr(verdict.mismatch) == repr(found)
    assert verdict.count == expected(batch)[1]
    assert verdict.passed == (not verdict.reasons)
    assert verdict.places == q.numel()


# --- wrong gates, one idea each -----------------------------------------------------------------------------


def _valid(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return torch.ones_like(x, dtype=torch.bool) if mask is None else mask


def _without(*codes: str) -> Judge:
    return lambda q, p, mask, **rules: right(q, p, mask, **rules) - set(codes)


def _rules(**changes: Any) -> Judge:
    return lambda q, p, mask, **rules: right(q, p, mask, **{**rules, **changes})


def _tensors(change: Callable[[torch.Tensor], torch.Tensor]) -> Judge:
    return lambda q, p, mask, **rules: right(change(q), change(p), mask, **rules)


def _passes_if(agrees: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]) -> Judge:
    """The mismatch decided by something else than a count of unequal tokens."""

    def gate(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor | None, **rules: Any) -> set[str]:
        codes = right(q, p, mask, **rules) - {"mismatch"}
        return codes | (set() if agrees(q, p, _valid(q, mask)) else {"mismatch"})

    return gate


def _multiplied(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor | None, **rules: Any) -> set[str]:
    m = _valid(q, mask)
    return right(q * m, p * m, None, **rules)


def _drops_last(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor | None, **rules: Any) -> set[str]:
    return right(q[:, :-1], p[:, :-1], None if mask is None else mask[:, :-1], **rules)


def _first_row(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor | None, **rules: Any) -> set[str]:
    return right(q[:1], p[:1], None if mask is None else mask[:1], **rules)


def _nan_is_equal(q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor | None, **rules: Any) -> set[str]:
    both = q.isnan() & p.isnan()
    return right(q.masked_fill(both, -1.0), p.masked_fill(both, -1.0), mask, **rules)


WRONG: dict[str, Judge] = {
    "compares probabilities": _tensors(torch.exp),
    "compares after a cast to bfloat16": _tensors(lambda x: x.to(torch.bfloat16)),
    "compares in float64 whatever is asked": _rules(compare_dtype=torch.float64),
    "compares in float32 whatever is asked": _rules(compare_dtype=torch.float32),
    "the mask multiplies": _multiplied,
    "the mask is ignored": lambda q, p, mask, **rules: right(q, p, None, **rules),
    "NaN equals NaN": _nan_is_equal,
    "NaN is replaced": _tensors(torch.nan_to_num),
    "one more is allowed": lambda q, p, mask, **rules: right(q, p, mask, **{**rules, "allow": rules["allow"] + 1}),
    "none is allowed": _rules(allow=0),
    "bits are values": _rules(bits=False),
    "values are bits": _rules(bits=True),
    "nothing compared passes": _without("nothing_compared"),
    "all masked passes": _without("all_masked"),
    "empty and masked are one": lambda q, p, mask, **rules: {
        "all_masked" if code == "nothing_compared" else code for code in right(q, p, mask, **rules)
    },
    "non-finite values pass": _rules(allow_nonfinite=10**9),
    "no non-finite value passes": _rules(allow_nonfinite=0),
    "narrowed values pass": _without("narrowed"),
    "bfloat16 always passes": _rules(strict_dtype=False),
    "bfloat16 never passes": _rules(strict_dtype=True),
    "closeness is enough": _passes_if(lambda q, p, m: torch.allclose(q[m].double(), p[m].double(), equal_nan=True)),
    "a mean of zero is enough": _passes_if(lambda q, p, m: not (p[m].double() - q[m].double()).sum()),
    "a maximum of zero is enough": _passes_if(
        lambda q, p, m: not m.any() or not (p[m].double() - q[m].double()).abs().max()
    ),
    "only a trainer above counts": _passes_if(lambda q, p, m: not (p[m].double() > q[m].double()).any()),
    "drops the last position": _drops_last,
    "looks at the first row": _first_row,
}


@pytest.mark.parametrize("gate", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_gate_is_killed(gate: Judge) -> None:
    with pytest.raises(AssertionError):
        hold(gate)


# --- vacuous gates: each with its own message ---------------------------------------------------------------

Q = torch.tensor([[-0.5, -1.25, -3.0], [-0.1, -2.0, -0.7]])


def codes(*tensors: Any, **named: Any) -> list[str]:
    return [reason.code for reason in judge(*tensors, **named).reasons]


def test_equal_values_in_other_memory_pass() -> None:
    assert codes(Q, Q.clone()) == []
    assert codes(Q, torch.from_numpy(Q.numpy().copy())) == []


@pytest.mark.parametrize(
    "other",
    [
        lambda q: q,
        lambda q: q.view(2, 3),
        lambda q: q.detach(),
        lambda q: q[:],
        lambda q: torch.from_numpy(q.numpy()),
        lambda q: q.view(3, 2).view(2, 3),
        lambda q: q.view(torch.int32).view(torch.float32),
    ],
)
def test_one_memory_on_both_sides_fails(other: Callable[[torch.Tensor], torch.Tensor]) -> None:
    assert codes(Q, other(Q)) == ["shared_storage"]


def test_columns_of_one_array_are_two_sides() -> None:
    stacked = torch.stack([Q, Q], dim=-1)
    assert codes(stacked[..., 0], stacked[..., 1]) == []
    assert codes(stacked[..., 0], stacked[..., 0]) == ["shared_storage"]
    whole = torch.cat([Q, Q])
    assert codes(whole[:2], whole[2:]) == []
    assert codes(whole[:1], whole[:1].reshape(1, 3)) == ["shared_storage"]


def test_empty_tensors_share_nothing() -> None:
    empty = torch.zeros(0)
    assert codes(empty, torch.zeros(0)) == ["nothing_compared"]


@pytest.mark.parametrize(
    ("declared", "code"),
    [
        (Declared(bypass=True), "bypass"),
        (Declared(rollout_source="vllm", trainer_source="vllm"), "bypass"),
        (Declared(rollout_mode="raw", trainer_mode="processed"), "mode"),
        (Declared(rollout_mode="processed", trainer_mode="raw"), "mode"),
    ],
)
def test_what_is_declared_fails(declared: Declared, code: str) -> None:
    verdict = judge(Q, Q.clone(), declared=declared)
    assert [r.code for r in verdict.reasons] == [code]


@pytest.mark.parametrize(
    "declared",
    [
        Declared(),
        Declared(rollout_source="vllm", trainer_source="fsdp", rollout_policy="7", trainer_policy="7"),
        Declared(rollout_mode="raw", trainer_mode="raw"),
        Declared(rollout_mode="processed"),
        Declared(sampling={"temperature": 0.7}),
    ],
)
def test_what_is_declared_passes(declared: Declared) -> None:
    assert judge(Q, Q.clone(), declared=declared).passed


def test_an_absent_trainer_is_a_bypass() -> None:
    verdict = judge(Q, None)
    assert [r.code for r in verdict.reasons] == ["bypass"]
    assert "no trainer log-probs" in verdict.reasons[0].message


def test_every_code_is_met_and_has_a_message_of_its_own() -> None:
    nan = Q.clone()
    nan[0, 0] = math.nan
    wide = Q.double() + 1e-12
    verdicts = [
        judge(Q, Q + 1),
        judge(Q, nan, allow=1),
        judge(Q[:0], Q[:0].clone()),
        judge(Q, Q.clone(), torch.zeros_like(Q)),
        judge(Q, Q),
        judge(Q, None),
        judge(Q, Q.clone(), declared=Declared(rollout_mode="raw", trainer_mode="processed")),
        judge(wide, wide.clone()),
        judge(Q.bfloat16(), Q.bfloat16().clone(), strict_dtype=True),
    ]
    assert [[r.code for r in v.reasons] for v in verdicts] == [[code] for code in CODES]
    messages = [v.reasons[0].message for v in verdicts]
    assert len(set(messages)) == len(CODES)
    assert not any(v.passed for v in verdicts)


# --- bad input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"allow": -1}, "allow is -1; it must be a number of tokens"),
        ({"allow": True}, "allow is True"),
        ({"allow": 0.5}, r"allow is 0\.5"),
        ({"allow_nonfinite": -2}, "allow_nonfinite is -2"),
        ({"bits": 1}, "bits is 1; it must be True or False"),
        ({"strict_dtype": "yes"}, "strict_dtype is 'yes'"),
        ({"compare_dtype": torch.bfloat16}, r"compare_dtype is torch\.bfloat16"),
        ({"alow": 1}, "alow"),
        ({"mask": Q + 5}, "mask holds 4.5"),
        ({"token_ids": torch.zeros(3, dtype=torch.int64)}, "token_ids has shape"),
        ({"token_ids": Q}, r"token_ids has dtype torch\.float32"),
    ],
)
def test_bad_input(rules: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        assert_no_mismatch(Q, Q.clone(), **rules)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"rollout_mode": "scaled"}, "rollout_mode is 'scaled'; it must be one of 'raw', 'processed', or None"),
        ({"trainer_policy": 7}, "trainer_policy is 7; it must be a string or None"),
        ({"bypass": 1}, "bypass is 1"),
        ({"sampling": {"temperature": math.nan}}, "sampling holds what JSON does not"),
        ({"sampling": {"seed": object()}}, "sampling holds what JSON does not"),
        ({"sampling": [1]}, "it must be a mapping"),
    ],
)
def test_bad_declarations(declared: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Declared(**declared)


# --- tokens -------------------------------------------------------------------------------------------------


@given(batches())
@settings(_SETTINGS, max_examples=200)
def test_first_and_worst_tokens(batch: Batch) -> None:
    q, p, mask = batch.tensors()
    verdict = judge(q, p, mask, **batch.rules)
    into = batch.rules["compare_dtype"]
    listed = []
    for place in _valid(q, mask).nonzero().tolist():
        a, b = q[tuple(place)].to(into), p[tuple(place)].to(into)
        steps, defined = numerics.ulp_distance(a, b)
        other_bits = bool(
            a.view(torch.int32 if into == torch.float32 else torch.int64)
            != b.view(torch.int32 if into == torch.float32 else torch.int64)
        )
        differ = other_bits and not (a.isnan() and b.isnan()) if batch.rules["bits"] else bool(a != b)
        if differ or not (a.isfinite() and b.isfinite()):
            listed.append((tuple(place), int(steps) if defined else None))
    places = [((*t.row, t.position), t.ulps) for t in verdict.first]
    assert places == listed[:KEPT]
    worst = sorted(listed, key=lambda found: (found[1] is not None, -(found[1] or 0), found[0]))[:KEPT]
    assert [((*t.row, t.position), t.ulps) for t in verdict.worst] == worst


def test_a_token_shows_both_values_in_decimal_and_hex_and_its_id() -> None:
    p = Q.clone()
    p[1, 2] = torch.nextafter(p[1, 2], torch.tensor(0.0))
    ids = torch.arange(6).reshape(2, 3) + 100
    (token,) = judge(Q, p, token_ids=ids).first
    assert (token.row, token.position, token.token_id, token.ulps) == ((1,), 2, 105, 1)
    said = token.as_dict()
    assert said["rollout_hex"] == float(Q[1, 2]).hex() == "-0x1.6666660000000p-1"
    assert (said["rollout"], said["trainer"]) == (float(Q[1, 2]), float(p[1, 2]))


def test_the_distance_of_float64_values_is_whole() -> None:
    far = judge(torch.tensor([-1e300], dtype=torch.float64), torch.tensor([1e300], dtype=torch.float64),
                compare_dtype=torch.float64).worst[0].ulps  # fmt: skip
    one = numerics.formats.FORMATS["float64"]
    assert far == 2 * one.ordinal(1e300)
    assert far > 2**63


def test_a_single_number_is_a_row() -> None:
    (token,) = judge(torch.tensor(-0.5), torch.tensor(-0.75)).first
    assert (token.row, token.position) == ((), 0)
    grad = Q.clone().requires_grad_()
    assert judge(grad, Q.clone()).passed


# --- patterns -----------------------------------------------------------------------------------------------


def names(*tensors: Any, **named: Any) -> list[str]:
    return [pattern.name for pattern in judge(*tensors, **named).patterns]


def rows(seed: int, shape: tuple[int, ...] = (4, 40)) -> torch.Tensor:
    return -4 * torch.rand(shape, generator=torch.Generator().manual_seed(seed)) ** 2


def noise(seed: int, shape: tuple[int, ...] = (4, 40)) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_noise_has_no_pattern() -> None:
    for seed in range(20):
        q = rows(seed)
        assert names(q, q + 0.01 * noise(seed + 100)) == []


def test_equal_sides_have_no_pattern() -> None:
    assert names(rows(0).bfloat16().float(), rows(0).bfloat16().float()) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_grid_of_a_16_bit_format(dtype: str) -> None:
    q = rows(1)
    assert names(q, q.to(DTYPES[dtype]).float()) == [f"trainer rounded to {dtype}"]
    assert names(q.to(DTYPES[dtype]), q) == [f"rollout rounded to {dtype}"]


@pytest.mark.parametrize("shift", [1, -1, 2, -2])
def test_a_shift(shift: int) -> None:
    q = rows(2)
    p = rows(3)
    here, there = (slice(0, -shift), slice(shift, None)) if shift > 0 else (slice(-shift, None), slice(0, shift))
    p[:, there] = q[:, here]
    verdict = judge(q, p)
    assert verdict.patterns[0].name == f"shifted by {shift:+d}"
    assert f"at {4 * (40 - abs(shift))} of {4 * (40 - abs(shift))} places" in verdict.patterns[0].evidence


def test_only_first_tokens() -> None:
    q, mask = rows(4), torch.ones(4, 40, dtype=torch.bool)
    mask[2, :7] = False
    p = q.clone()
    p[0, 0] += 0.5
    p[2, 7] += 0.5
    assert "only first tokens" in names(q, p, mask)
    p[1, 3] += 0.5
    assert "only first tokens" not in names(q, p, mask)
    assert "only first tokens" not in names(q[:, :1], q[:, :1] + 1.0)  # where every token is a first one


@pytest.mark.parametrize("filler", [0.0, math.nan, -1.0])
def test_only_padding(filler: float) -> None:
    q, p = rows(5), rows(5)
    q[1, 30:] = filler
    q[3, 38:] = filler
    verdict = judge(q, p)
    assert "only padding" in [x.name for x in verdict.patterns]
    assert str(filler) in next(x.evidence for x in verdict.patterns if x.name == "only padding")
    p[0, 3] += 1.0
    assert "only padding" not in names(q, p)


def test_one_sign() -> None:
    q = rows(6)
    offset = 0.01 * noise(6).abs()
    assert "one sign" in names(q, q + offset)
    assert "one sign" in names(q, q - offset)
    assert "one sign" not in names(q[0, :4], q[0, :4] + offset[0, :4])  # too few to say
    few = q.clone()
    few[0, :2] -= 1
    assert "one sign" not in names(q, torch.where(offset > 0, few + offset, few))


def test_proportional() -> None:
    q = rows(7)
    verdict = judge(q, 0.7 * q + 0.001 * noise(7))
    (pattern,) = [x for x in verdict.patterns if x.name == "proportional"]
    assert "trainer = 0.7" in pattern.evidence


def test_other_policies_are_named() -> None:
    declared = Declared(rollout_policy="6", trainer_policy="7")
    assert names(Q, Q + 1e-3, declared=declared)[0] == "other policy"
    assert names(Q, Q.clone(), declared=declared) == []


def test_a_temperature_in_the_logits_is_seen() -> None:
    logits = 3 * noise(8, (200, 50))
    ids = torch.arange(200) % 50
    raw, cold = (numerics.token_logprobs(logits, ids, temperature=t) for t in (1.0, 0.6))
    assert "proportional" in names(raw, cold)


# --- what a reader gets -------------------------------------------------------------------------------------


def test_assert_no_mismatch() -> None:
    assert assert_no_mismatch(Q, Q.clone(), torch.ones_like(Q)).passed
    with pytest.raises(GateFailure) as caught:
        assert_no_mismatch(Q, Q + 1e-3)
    assert caught.value.verdict.count == 6
    text = str(caught.value)
    assert text.startswith("numerics gate: FAILED: 6 of 6 tokens differ, 0 allowed")
    assert "ULPs apart" in text
    assert "-0x1." in text
    assert isinstance(caught.value, AssertionError)


def test_text_is_whole_whatever_the_width() -> None:
    text = as_text(judge(Q, Q + 1e-3))
    assert all(value.hex() in text for value in Q.flatten().tolist())


def test_json_is_strict() -> None:
    import json

    p = Q.clone()
    p[0, 0], p[0, 1] = math.nan, -math.inf
    record = json.loads(as_json(judge(Q, p)), parse_constant=pytest.fail)
    assert record["schema"] == "numerics.gate/1"
    assert record["passed"] is False
    assert record["first"][0]["trainer"] == "nan"
    assert record["first"][1]["trainer_hex"] == "-inf"
    assert record["mismatch"]["logprobs_diff_max"] == "nan"
    assert set(record["rules"]) == {"allow", "bits", "allow_nonfinite", "strict_dtype", "compare_dtype"}


def test_github_annotations_are_escaped() -> None:
    lines = as_github(judge(Q, 0.5 * Q.repeat(1, 1))).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::error title=numerics gate%3A mismatch::6 of 6 tokens differ")
    many = as_github(judge(rows(9), 0.5 * rows(9)))
    assert "%0Ahint, proportional: " in many
    assert "0.0%25" in many
    assert as_github(judge(Q, Q.clone())).startswith("::notice title=numerics gate::numerics gate: PASSED")


def test_rules_are_the_keywords() -> None:
    with pytest.raises(TypeError):
        Rules(0)  # type: ignore[misc]
