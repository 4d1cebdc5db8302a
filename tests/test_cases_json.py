"""Reported failing inputs (``data/cases.json``): our code gives the right value, and not the one that was seen.

The file's ``atol`` is not used. A float32 result may be off by the reference's own derived bound, a float64 figure by
the roundings of its few operations.
"""

import json
import math
from pathlib import Path

import pytest
import torch

import numerics
from numerics import reference
from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase
from numerics.suite import bounds, oracle
from numerics.suite.builtin import BUILTIN

CASES = json.loads((Path(__file__).parent / "data" / "cases.json").read_text(encoding="utf-8"))["cases"]

#: what the contracts built so far compute; the rest belongs to divergences, corrections and aggregation
FIGURES = {
    "mismatch_count": "logprobs_mismatch_count",
    "valid_count": "valid_count",
    "abs_diff_max": "logprobs_diff_max",
    "abs_diff_mean": "logprobs_diff_mean",
    "prob_abs_diff_mean": "probs_diff_mean",
    "pearson_logprob": "logprobs_pearson",
    "pearson_prob": "probs_pearson",
}
#: how many cases that is
COVERED = 37
CUTS = ("min_p", "top_k", "top_p")


def number(x):
    return float(x) if isinstance(x, str) else x


def chosen(*quantities):
    found = [c for c in CASES if c["quantity"] in quantities and not c["recipe"]]
    return [pytest.param(c, id=c["id"]) for c in found]


def logits_case(case):
    given = case["inputs"]
    values = tuple(map(number, given["logits"]))
    cuts = tuple((name, given[name]) for name in CUTS if name in given)
    row = Logits(values, given.get("label", 0), given.get("temperature", 1.0))
    return LogitsCase((row,), case["dtype"], temperature="float", cuts=cuts)


def call(fn, built, *, ids=True):
    tensors = built.tensors("cpu")
    return fn(tensors["logits"], *([tensors["token_ids"]] if ids else []), **built.keywords())


def close(got, case, allowed):
    want = case["expected"]
    if want == "UNDEFINED":
        return math.isnan(got)
    want = number(want)
    return got == want or abs(got - want) <= allowed + abs(want) * 2.0**-52


@pytest.mark.parametrize("case", chosen("token_logprob", "vocab_parallel_logprob"))
def test_token_logprobs(case):
    if "shards" in case["inputs"]:
        given = case["inputs"]
        flat = [v for shard in given["shards"] for v in shard]
        logits = torch.tensor([list(map(number, flat))], dtype=FORMATS[case["dtype"]].dtype)
        got = reference.token_logprobs(logits, torch.tensor([given["label"]]), real_vocab=given.get("real_vocab"))
        assert close(float(got), case, 2.0**-24 * abs(number(case["expected"])))
        return
    built = logits_case(case)
    if case["expected"] == "REJECT_OR_GREEDY":
        with pytest.raises(ValueError, match="temperature"):
            call(reference.token_logprobs, built)
        return
    got = float(call(reference.token_logprobs, built))
    kept = oracle.supports(built, BUILTIN["reference"][0].algorithm)[0]
    conditioning = oracle.score(built, (kept[0],)).conditioning
    allowed = float(bounds.token_logprobs(conditioning, BUILTIN["reference"][0].algorithm, case["dtype"])[0])
    # the reported value is of T itself; ours is of T rounded once to float32
    unit = FORMATS["float32"].u * (1 + float(conditioning.mean_gap[0] + conditioning.gap[0]))
    assert close(got, case, allowed + unit)
    if isinstance(case["wrong_seen"], float) and case["wrong_seen"] != case["expected"]:
        assert got != case["wrong_seen"]


@pytest.mark.parametrize("case", chosen("kept_support"))
def test_kept_support(case):
    built = logits_case(case)
    every = built.replace(
        rows=tuple(Logits(built.rows[0].values, v, built.rows[0].temperature) for v in range(built.width))
    )
    kept = [v for v, x in enumerate(call(reference.token_logprobs, every).tolist()) if x > -math.inf]
    assert kept == case["expected"]
    assert kept != case["wrong_seen"]


@pytest.mark.parametrize("case", chosen("entropy"))
def test_entropy(case):
    built = logits_case(case)
    got = float(call(reference.entropy, built, ids=False))
    assert close(got, case, abs(number(case["expected"])) * 2.0**-24)


@pytest.mark.parametrize("case", chosen(*FIGURES))
def test_mismatch(case):
    given = case["inputs"]
    dtype = FORMATS[case["dtype"]].dtype

    def side(name):
        x = given[name]
        rows = x if isinstance(x[0], list) else [x]
        return torch.tensor([[number(v) for v in row] for row in rows], dtype=dtype)

    rollout, trainer = side("rollout"), side("train")
    mask = None if case["mask"] is None else torch.tensor(case["mask"]).reshape(rollout.shape)
    got = getattr(numerics.mismatch(rollout, trainer, mask), FIGURES[case["quantity"]])
    # float32 probabilities: half an ulp of each, at most 2^-24
    rounding = 2.0**-23 if case["quantity"].startswith(("prob", "pearson_prob")) else 2.0**-50
    assert close(float(got), case, rounding)
    if isinstance(case["wrong_seen"], float) and close(case["wrong_seen"], case, rounding) is False:
        assert got != case["wrong_seen"]


def test_nothing_is_dropped_silently():
    covered = chosen("token_logprob", "vocab_parallel_logprob", "kept_support", "entropy", *FIGURES)
    assert len(CASES) == 100
    assert len(covered) == COVERED
    assert sum(c["quantity"] == "ulp_distance" for c in CASES) == 7  # in test_formats.py
