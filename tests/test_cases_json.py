"""The failures reported of other code (``data/cases.json``): what the package returns for each of their inputs.

Their ``atol`` is not used: a log-prob or an entropy may be off by the bound of the reference's declared algorithm, a
figure of float64 arithmetic by a few units of 2^-53.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import numerics
from numerics.formats import FORMATS
from numerics.reference import removed_by_cuts
from numerics.reference.moments import Moments
from numerics.strategies.cases import Logits, LogitsCase
from numerics.suite import bounds, oracle
from numerics.suite.implementation import Algorithm
from numerics.suite.measure import Exact, mp, severities, within

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "cases.json").read_text("utf-8"))["cases"]
ALGORITHM = Algorithm(formula="shifted", accumulate="float64", exp_ulps=1.0)  # what the reference declares

#: cases per quantity that the package computes now
COVERED = {
    "abs_diff_max": 6,
    "abs_diff_mean": 3,
    "abs_diff_mean_scored": 1,
    "entropy": 3,
    "kept_support": 3,
    "mismatch_count": 1,
    "pearson_prob": 2,
    "pooled_max": 2,
    "pooled_mean": 7,
    "pooled_std": 2,
    "pooled_sum": 2,
    "prob_abs_diff_mean": 1,
    "sequence_logprobs": 1,
    "token_logprob": 19,
    "ulp_distance": 7,
    "vocab_parallel_logprob": 2,
}
#: cases per quantity that belongs to later contracts
SKIPPED = {
    "chi2_token": 2,
    "cp_restore": 1,
    "cross_entropy_mean": 2,
    "ess": 1,
    "ess_fraction": 2,
    "flat_offset": 2,
    "frac_seq_ratio_mean_above": 1,
    "kl_k1": 1,
    "kl_k2": 1,
    "kl_k3": 8,
    "log_mixture": 2,
    "log_ppl_abs_diff_seq_mean": 1,
    "logsumexp": 4,
    "ppl_seq_mean": 2,
    "ppl_token": 1,
    "ratio_mean": 4,
    "seq_ratio_mean": 3,
}
#: reports whose logits are a recipe for random numbers, each with a test of its own
RECIPES = {"B73b", "B73c", "B75a"}
#: the file's words for "no number": NaN here; temperature 0 is refused
WORDS = {"UNDEFINED": math.nan}


def test_no_case_is_dropped() -> None:
    assert Counter(case["quantity"] for case in CASES) == COVERED | SKIPPED
    assert len(CASES) == sum(COVERED.values()) + sum(SKIPPED.values()) == 100
    assert RECIPES.issubset(case["id"] for case in CASES)
    assert sum(map(len, (CHOSEN_LOGITS, CHOSEN_FIGURES, CHOSEN_OTHERS, RECIPES))) == sum(COVERED.values()) == 62


def numbers(x: Any) -> Any:
    """The file's strings "nan", "inf", "-inf" as floats, also inside lists."""
    if isinstance(x, list):
        return [numbers(v) for v in x]
    return WORDS[x] if isinstance(x, str) and x in WORDS else float(x) if isinstance(x, str) else x


def tensor(x: Any, dtype: str) -> torch.Tensor:
    return torch.tensor(numbers(x), dtype=torch.float64).to(FORMATS[dtype].dtype)


def chosen(*quantities: str) -> list[dict[str, Any]]:
    assert set(quantities) <= set(COVERED)
    return [case for case in CASES if case["quantity"] in quantities and case["id"] not in RECIPES]


def each(cases: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=[f"{case['id']}-{case['quantity']}" for case in cases])


def assert_not_the_reported_failure(case: dict[str, Any], got: Any) -> None:
    """``wrong_seen`` is a number, a list of them, or a sentence; none of the numbers is what we return."""
    try:
        wrong = numbers(case["wrong_seen"])
    except ValueError:
        return
    if wrong is not None:
        assert not np.array_equal(
            np.asarray(got, dtype=np.float64), np.asarray(wrong, dtype=np.float64), equal_nan=True
        )


# --- log-probs and entropies -----------------------------------------------------------------------------------------

CHOSEN_LOGITS = chosen("token_logprob", "vocab_parallel_logprob", "sequence_logprobs", "entropy")


def as_logits_case(case: dict[str, Any]) -> LogitsCase:
    """The report as one call: shards joined, and for a sequence row i scoring token i + 1."""
    given, rows = case["inputs"], []
    if case["quantity"] == "sequence_logprobs":
        rows = [Logits(tuple(z), t) for z, t in zip(given["logits"][:-1], given["tokens"][1:], strict=True)]
    else:
        values = given["logits"] if "logits" in given else [z for shard in given["shards"] for z in shard]
        t = given.get("temperature", 1.0)
        rows = [Logits(tuple(tensor(values, case["dtype"]).tolist()), given.get("label", 0), t)]
    cuts = tuple((name, given[name]) for name in ("top_k", "top_p", "real_vocab") if name in given)
    form = "float" if "temperature" in given else "absent"
    return LogitsCase(rows=tuple(rows), dtype=case["dtype"], temperature=form, cuts=cuts)


@each([case for case in CHOSEN_LOGITS if case["expected"] != "REJECT_OR_GREEDY"])
def test_log_probs_and_entropies(case: dict[str, Any]) -> None:
    call = as_logits_case(case)
    is_entropy = case["quantity"] == "entropy"
    tensors = call.tensors("cpu")
    if is_entropy:
        del tensors["token_ids"]
    function: Callable[..., torch.Tensor] = numerics.entropy if is_entropy else numerics.token_logprobs
    got = function(**tensors, **call.keywords()).to(torch.float64).numpy()

    cut = any(name.startswith("top") for name, _ in call.cuts)
    (support,) = oracle.supports(call, ALGORITHM)[0] if cut else (None,)  # no report lies near a border
    kept = None if support is None else (support,)
    conditioning = oracle.entropy_conditioning(call) if is_entropy else oracle.score(call, kept).conditioning
    ours = oracle.entropy(call) if is_entropy else oracle.score(call, kept).logprobs
    bound = (bounds.entropy if is_entropy else bounds.token_logprobs)(conditioning, ALGORITHM, case["dtype"])

    value = np.atleast_1d(np.asarray(numbers(case["expected"]), dtype=np.float64))
    digits = [mp.mpf(d) for d in ([case["expected_digits"]] if case["expected_digits"] else value.tolist())]
    # the file rounded its exact number once to float64
    reported = Exact(value=value, radius=2.0**-53 * np.abs(value) + 5e-324, refine=lambda i: digits[i])
    assert (severities(within(got, reported, bound, label=case["id"])) <= 1).all()
    assert (severities(within(ours.value, reported, ours.radius + reported.radius, label="oracle")) <= 1).all()
    assert_not_the_reported_failure(case, got if got.size > 1 else got[0])


def test_temperature_zero_is_refused() -> None:
    (case,) = [case for case in CHOSEN_LOGITS if case["expected"] == "REJECT_OR_GREEDY"]
    call = as_logits_case(case)
    with pytest.raises(ValueError, match=r"temperature is 0\.0; it must be finite and > 0"):
        numerics.token_logprobs(**call.tensors("cpu"), **call.keywords())


@pytest.mark.parametrize(("name", "dtype"), [("B73b", torch.float32), ("B73c", torch.bfloat16)])
def test_a_row_has_the_same_bits_in_every_batch(name: str, dtype: torch.dtype) -> None:
    assert next(case for case in CASES if case["id"] == name)["expected"] == "BIT_EQUAL_ACROSS_BATCH"
    generator = torch.Generator().manual_seed(0)
    h, w = torch.randn(64, 2048, generator=generator), torch.randn(4099, 2048, generator=generator) / 2048**0.5
    logits, ids = (h @ w.T).to(dtype), torch.randint(4099, (64,), generator=generator)
    batch = numerics.token_logprobs(logits, ids)
    for size in (1, 7, 32):
        parts = [numerics.token_logprobs(z, i) for z, i in zip(logits.split(size), ids.split(size), strict=True)]
        assert torch.equal(torch.cat(parts), batch)


def test_random_logits_are_within_the_bound() -> None:
    case = next(case for case in CASES if case["id"] == "B75a")
    assert (case["expected"], case["inputs"]["temperature"]) == ("ERROR_BOUND_ONLY", 0.7)
    generator = torch.Generator().manual_seed(0)
    torch.randn(5, 5, generator=generator)
    logits = torch.randn(200, 1000, generator=generator) * 6
    rows = tuple(Logits(tuple(z), 5 * i, 0.7) for i, z in enumerate(logits.tolist()))
    call = LogitsCase(rows=rows, temperature="float")
    got = numerics.token_logprobs(**call.tensors("cpu"), **call.keywords())
    scored = oracle.score(call)
    bound = bounds.token_logprobs(scored.conditioning, ALGORITHM, "float32")
    assert (severities(within(got.to(torch.float64).numpy(), scored.logprobs, bound, label="log-prob")) <= 1).all()


# --- figures of pairs and of pooled groups ---------------------------------------------------------------------------

FIELDS = {
    "abs_diff_max": "logprobs_diff_max",
    "abs_diff_mean": "logprobs_diff_mean",
    "prob_abs_diff_mean": "probs_diff_mean",
    "pearson_prob": "probs_pearson",
    "mismatch_count": "logprobs_mismatch_count",
}
POOLED: dict[str, Callable[[Moments, dict[str, Any]], float]] = {
    "pooled_mean": lambda m, _: m.mean,
    "pooled_sum": lambda m, _: m.total.over(1),
    "pooled_max": lambda m, _: m.maximum,
    "pooled_std": lambda m, given: m.std(given["ddof"]),
}
CHOSEN_FIGURES = chosen(*FIELDS, *POOLED)


def figure(case: dict[str, Any]) -> tuple[float, int]:
    """What the package returns, and from how many numbers."""
    given, dtype = case["inputs"], case["dtype"]
    if case["quantity"] in POOLED:
        pooled = Moments()
        for group in given["groups"]:
            pooled = pooled.merge(Moments.of(tensor(group, dtype).to(torch.float64)[None])[0])
        return POOLED[case["quantity"]](pooled, given), pooled.count
    mask = None if case["mask"] is None else torch.tensor(case["mask"])
    compare = torch.float64 if dtype == "float64" else torch.float32
    seen = numerics.mismatch(
        tensor(given["rollout"], dtype), tensor(given["train"], dtype), mask, compare_dtype=compare
    )
    return getattr(seen, FIELDS[case["quantity"]]), seen.valid_count


@each(CHOSEN_FIGURES)
def test_figures(case: dict[str, Any]) -> None:
    got, n = figure(case)
    want = float(numbers(case["expected"]))
    # differences, sums, squares, one quotient, one root: n + 8 roundings in float64. No case depends on more: the
    # probabilities of the one that reads them are equal, and the deviations are not small against their values' spread
    assert got == pytest.approx(want, rel=(n + 8) * 2.0**-53, abs=0.0, nan_ok=True)
    assert_not_the_reported_failure(case, got)


# --- supports, distances, and a figure of scored logits --------------------------------------------------------------

CHOSEN_OTHERS = chosen("kept_support", "ulp_distance", "abs_diff_mean_scored")


@each([case for case in CHOSEN_OTHERS if case["quantity"] == "kept_support"])
def test_supports(case: dict[str, Any]) -> None:
    given = case["inputs"]
    cuts = {name: given[name] for name in ("top_k", "top_p") if name in given}
    scaled = tensor(given["logits"], "float64") / given.get("temperature", 1.0)
    kept = (~removed_by_cuts(scaled[None], **cuts)[0]).nonzero()[:, 0].tolist()
    assert kept == case["expected"] != case["wrong_seen"]


@each([case for case in CHOSEN_OTHERS if case["quantity"] == "ulp_distance"])
def test_ulp_distances(case: dict[str, Any]) -> None:
    a, b = (tensor([case["inputs"][side]], case["inputs"]["fmt"]) for side in ("a", "b"))
    distance, defined = numerics.ulp_distance(a, b)
    assert defined.item() == (case["expected"] != "UNDEFINED")
    if defined.item():
        assert distance.item() == case["expected"]
        assert distance.item() != case["wrong_seen"]


def test_log_probs_scored_at_the_rollouts_temperature() -> None:
    (case,) = [case for case in CHOSEN_OTHERS if case["quantity"] == "abs_diff_mean_scored"]
    given = case["inputs"]
    logits, labels, rollout = tensor(given["logits"], "float64"), torch.tensor(given["labels"]), given["rollout"]
    want = float(case["expected"])
    # with float64 logits nothing is rounded to float32 on the way: the difference of numbers below 0.5 is 3e-8
    scored = numerics.token_logprobs(logits, labels, temperature=given["temperature"])
    got = numerics.mismatch(tensor(rollout, "float64"), scored, compare_dtype=torch.float64).logprobs_diff_mean
    assert abs(got - want) <= 16 * 2.0**-53 * 0.5
    # with float32 logits each log-prob adds half an ulp of its own, 2^-26 below 0.5
    scored = numerics.token_logprobs(logits.float(), labels, temperature=given["temperature"])
    single = numerics.mismatch(tensor(rollout, "float32"), scored).logprobs_diff_mean
    assert abs(single - want) <= 2.0**-26
    for value in (got, single):
        assert_not_the_reported_failure(case, value)
