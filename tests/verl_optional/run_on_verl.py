"""Hold verl's own ``calculate_debug_metrics`` against the suite, and our drop-in against it on real log-probs.

usage: run_on_verl.py [ROLLOUTS_DIR] [--max-examples 100] [--seed 1] [--dtypes float32 bfloat16]

Prints markdown. Exit status: 0; 1 if a figure of ours is further from verl's than both roundings explain, further from
the exact one than its own, or not the published one; 2 for a directory without pairs. What the suite finds in verl
changes no exit status: it is data. Needs verl (README.md beside this file) and, for the last part, ``.npz`` files with
``rollout_lp`` and ``lp__*``.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from numerics.integrations.verl import debug_metrics, drop_in
from numerics.strategies.cases import PairCase, PairRow
from numerics.suite.oracle_pairs import COUNTS, FIGURES
from numerics.suite.oracle_pairs import mismatch as exact_mismatch
from numerics.suite.runner import Finding, Result, check, record_cases

#: the figures that verl and we both report
SHARED = ("probs_diff_mean", "probs_diff_max", "probs_diff_std", "probs_pearson")

#: (file, key of the trainer's side) -> what it is, and verl's mean, max and Pearson as published with the data
PUBLISHED = {
    ("vllm_bf16_raw_T1", "lp__bf16_sdpa_8_left"): ("vLLM bf16 / HF bf16 (healthy)", ("0.0073", "0.097", "0.99923")),
    ("vllm_bf16_processed_T0.7_topp0.9", "lp__bf16_sdpa_8_left_T0.7"): (
        "top-p 0.9 renormalised, same T",
        ("0.0326", "0.180", "0.9949"),
    ),
    ("vllm_bf16_processed_T0.7", "lp__bf16_sdpa_8_left"): (
        "T 0.7 processed, trainer at T 1",
        ("0.102", "0.452", "0.9615"),
    ),
}

ULP_PAIR = ((-0.10000000149011612,), (-0.10000000894069672,))

#: what it shows, the dtypes of both sides, rollout, trainer
SMALL: tuple[tuple[str, str, str, tuple[float, ...], tuple[float, ...]], ...] = (
    ("1 ULP apart", "float32", "float32", *ULP_PAIR),
    ("identical", "bfloat16", "float32", (-1.0, -2.0), (-1.0, -2.0)),
    ("identical", "float32", "float16", (-1.0, -2.0), (-1.0, -2.0)),
    ("identical", "bfloat16", "bfloat16", (-0.5, -1.0), (-0.5, -1.0)),
    ("identical", "float16", "float16", (-8.0, -9.0), (-8.0, -9.0)),
    ("1 ULP of bfloat16 apart", "bfloat16", "bfloat16", (-0.015625,), (-0.0157470703125,)),
    ("constant, identical", "float32", "float32", (-1.0,) * 2, (-1.0,) * 2),
    ("constant, identical", "float32", "float32", (-1.0,) * 3, (-1.0,) * 3),
    ("constant, identical", "float32", "float32", (-1.0,) * 12, (-1.0,) * 12),
    ("constant rollout", "float32", "float32", (-1.0,) * 12, (-1.0, -2.0) * 6),
    ("the tail", "float32", "float32", (-20.0, -0.5), (-40.0, -0.5)),
)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A real pair: log-probs of the same tokens, [B, R] float32, and the mask of those that both sides have."""

    file: str
    key: str
    rollout: torch.Tensor
    trainer: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Our figures, verl's and the exact ones on one pair, and what ours and verl's may be off by.

    Both bounds are the suite's (``numerics/suite/bounds.py``) around the exact figure: ours for float64 accumulation,
    verl's for float32 arithmetic, whose sums of n terms may carry n roundings. So |ours - verl| <= their sum.
    """

    pair: Pair
    ours: dict[str, Any]
    verl: dict[str, Any]
    exact: dict[str, Any]
    allowed_ours: dict[str, float]
    allowed_verl: dict[str, float]

    def defined(self, name: str) -> bool:
        """Whether both have a number."""
        return not (math.isnan(self.ours[name]) or math.isnan(self.verl[name]))

    def apart(self, name: str) -> float:
        """|ours - verl|."""
        return abs(float(self.ours[name]) - float(self.verl[name]))

    def ratio(self, name: str) -> float:
        """|ours - verl| over what both may be off by."""
        return self.apart(name) / (self.allowed_ours[name] + self.allowed_verl[name])

    def own_ratio(self, name: str) -> float:
        """|ours - exact| over what ours may be off by."""
        return float(abs(self.ours[name] - self.exact[name])) / self.allowed_ours[name]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def short(values: Sequence[float]) -> str:
    """Numbers, a repeated one once with its count."""
    if len(values) > 2 and len(set(values)) == 1:
        return f"{len(values)} x {values[0]!r}"
    head = ", ".join(map(repr, values[:6]))
    return head if len(values) <= 6 else f"{head}, ... ({len(values)})"


def number(x: float) -> str:
    """Seven digits: a float32 has no more."""
    return f"{float(x):.7g}"


def show(case: Any) -> str:
    """The valid tokens of a case."""
    rollout, trainer = zip(*case.tokens, strict=True) if case.tokens else ((), ())
    return f"{case.rollout_dtype} q = {short(rollout)}; {case.trainer_dtype} p = {short(trainer)}"


def same_dtype_failures(result: Result, max_examples: int, seed: int) -> str:
    """How many of the check's cases with **both** sides in its dtype fail, "failing/met"."""
    if result.status == "not applicable":
        return ""
    one = result.check
    cases = record_cases(one.property, one.domain, max_examples=max_examples, seed=seed)
    alike = [case for case in cases if getattr(case, "trainer_dtype", one.dtype) == one.dtype]
    found = [one.examine(case, one.context)[0] for case in alike]
    return f"{sum(f is not None and f.severity > 1 for f in found)}/{len(alike)}"


def suite_tables(max_examples: int, seed: int, dtypes: Sequence[str]) -> str:
    """Status of every rule by dtype, then the simplest and the worst case of every failure."""
    results = check("numerics.integrations.verl:debug_metrics", dtypes=dtypes, max_examples=max_examples, seed=seed)
    rules = {r.check.property.slug: r.check.property for r in results}
    by = {(r.check.property.slug, r.check.dtype): r for r in results}
    header = ["rule", "statement", *(x for d in dtypes for x in (f"{d}, trainer any", f"failing, both {d}"))]
    rows = []
    for slug, prop in rules.items():
        found = (by[slug, d] for d in dtypes)
        cells = (x for r in found for x in (r.status, same_dtype_failures(r, max_examples, seed)))
        rows.append([slug, prop.statement.replace("|", "\\|"), *cells])
    failures = [r for r in results if not r.ok]
    seen = [
        [f"{r.check.property.id} {r.check.dtype}", what, *finding(f)]
        for r in failures
        for what, f in (("simplest", r.simplest), ("worst", r.worst))
        if f is not None
    ]
    columns = ["rule, dtype", "", "case (valid tokens)", "figure", "verl", "exact", "allowed"]
    return table(header, rows) + "\n" + table(columns, seen)


def finding(f: Finding) -> list[str]:
    """The cells of one finding."""
    if f.error:
        return [show(f.case), f"raised {f.error}", "", "", ""]
    if f.bits and f.label.partition(",")[0] not in (*COUNTS, *FIGURES):  # a statement, which holds or does not
        return [show(f.case), f.label, "does not hold", "", ""]
    return [show(f.case), f.label, number(f.got), number(f.exact), number(f.allowed)]


def small_table() -> str:
    """Small inputs that anyone can paste: verl's figures and ours."""
    names = ("probs_diff_max", "probs_diff_mean", "probs_pearson")
    rows = []
    for what, rollout_dtype, trainer_dtype, q, p in SMALL:
        sides = (
            torch.tensor([q], dtype=getattr(torch, rollout_dtype)),
            torch.tensor([p], dtype=getattr(torch, trainer_dtype)),
        )
        mask = torch.ones(sides[0].shape, dtype=torch.int64)
        verl, ours = debug_metrics.fn(*sides, mask), drop_in.fn(*sides, mask)
        shown = [f"{number(verl[n])} / {number(ours[n])}" for n in names]
        count = str(ours["logprobs_mismatch_count"])
        rows.append([what, f"{rollout_dtype} {short(q)}", f"{trainer_dtype} {short(p)}", *shown, count])
    return table(["", "rollout", "trainer", *(f"{n} verl / ours" for n in names), "our mismatch_count"], rows)


def pairs(directory: Path) -> Iterator[Pair]:
    """Every real pair of a directory; what stands at masked places (NaN) stays there."""
    for path in sorted(directory.glob("*.npz")):
        with np.load(path) as data:
            keys = [k for k in data.files if k.startswith("lp__")] if "rollout_lp" in data.files else []
            for key in keys:
                rollout, trainer = (torch.from_numpy(data[k]) for k in ("rollout_lp", key))
                mask = (torch.isfinite(rollout) & torch.isfinite(trainer)).long()
                yield Pair(file=path.stem, key=key, rollout=rollout, trainer=trainer, mask=mask)


def compare(pair: Pair) -> Comparison:
    """Both functions on one pair."""
    keep = pair.mask.bool()
    row = PairRow(tuple(pair.rollout[keep].tolist()), tuple(pair.trainer[keep].tolist()), (True,) * int(keep.sum()))
    exact = exact_mismatch(PairCase((row,)))
    return Comparison(
        pair=pair,
        ours=drop_in.fn(pair.rollout, pair.trainer, pair.mask),
        verl=debug_metrics.fn(pair.rollout, pair.trainer, pair.mask),
        exact=exact.figures,
        allowed_ours=exact.allowed(drop_in.algorithm),
        allowed_verl=exact.allowed(debug_metrics.algorithm),
    )


def published_misses(c: Comparison) -> list[str]:
    """Published figures that ours, rounded to their digits, do not give."""
    expected = PUBLISHED.get((c.pair.file, c.pair.key), ("", ()))[1]
    misses = []
    for name, digits in zip(("probs_diff_mean", "probs_diff_max", "probs_pearson"), expected, strict=False):
        got = f"{c.ours[name]:.{len(digits.partition('.')[2])}f}"
        if got != digits:
            misses.append(f"{c.pair.file} {name}: {got}, published {digits}")
    return misses


def real_rows(compared: Sequence[Comparison]) -> list[list[str]]:
    """The rows of the published pairs, in their order: verl's figure / ours."""
    by = {(c.pair.file, c.pair.key): c for c in compared}
    rows = []
    for place, (what, published) in PUBLISHED.items():
        if place in by:
            c = by[place]
            figures = [f"{number(c.verl[n])} / {number(c.ours[n])}" for n in SHARED]
            ours = (str(c.ours["valid_count"]), str(c.ours["logprobs_mismatch_count"]))
            rows.append([what, *figures, ", ".join(published), *ours, number(c.ours["logprobs_diff_mean"])])
    return rows


def agreement_row(name: str, compared: Sequence[Comparison]) -> list[str]:
    """How far one figure is apart at most, over all pairs on which it is defined."""
    both = [c for c in compared if c.defined(name)]
    if not both:
        return [name, "0", "", "", ""]
    largest = (max(of(c, name) for c in both) for of in (Comparison.apart, Comparison.ratio, Comparison.own_ratio))
    return [name, str(len(both)), *(f"{x:.2g}" for x in largest)]


def real_report(directory: Path) -> tuple[str, list[str]]:
    """The outside check as text, and what is wrong."""
    compared = [compare(pair) for pair in pairs(directory)]
    wrong = [miss for c in compared for miss in published_misses(c)]
    for c in compared:
        for name in filter(c.defined, SHARED):
            if not (c.ratio(name) <= 1 and c.own_ratio(name) <= 1):
                what = f"ours {c.ours[name]!r}, verl {c.verl[name]!r}, exact {number(c.exact[name])}"
                wrong.append(f"{c.pair.file} {c.pair.key} {name}: {what}")
    header = ["pair", *(f"{n} verl / ours" for n in SHARED), "published mean, max, Pearson"]
    text = table([*header, "N", "our mismatch_count", "our logprobs_diff_mean"], real_rows(compared))
    columns = ["figure", "pairs", "largest \\|ours - verl\\|", "over both bounds", "our error over our bound"]
    return f"{text}\n{table(columns, [agreement_row(name, compared) for name in SHARED])}", wrong


def main() -> int:
    """Both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rollouts", nargs="?", type=Path, help="directory of .npz pairs for the outside check")
    parser.add_argument("--max-examples", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # torch warns about a deviation of one token
    logging.disable(logging.WARNING)  # verl logs every empty mask
    if options.rollouts is not None and not any(True for _ in pairs(options.rollouts)):
        print(f"{options.rollouts} has no .npz files with rollout_lp and lp__* arrays", file=sys.stderr)
        return 2

    names = ("verl", "torch", "tensordict", "hypothesis")
    print("versions:", ", ".join(f"{name} {version(name)}" for name in names), "\n")
    print(f"## The suite on verl's function ({options.max_examples} examples a check, seed {options.seed})\n")
    print(suite_tables(options.max_examples, options.seed, options.dtypes))
    print("## Small inputs\n")
    print(small_table())
    if options.rollouts is None:
        return 0
    text, wrong = real_report(options.rollouts)
    print("## Real log-probs\n")
    print(text)
    for line in wrong:
        print("WRONG:", line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
