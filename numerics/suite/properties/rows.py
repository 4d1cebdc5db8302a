"""Rules of ``token_logprobs``: rows and batches, memory, threads, masks, bad input."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import numpy as np
import torch

from numerics.formats import FORMATS
from numerics.strategies.cases import Logits, LogitsCase, Tail
from numerics.suite import special
from numerics.suite.measure import Measurement, holds, same
from numerics.suite.properties.logprobs import cases, output_format
from numerics.suite.property import Context, Property, refuses, rule

__all__ = ["RULES"]

RULES: dict[str, Property] = {}
_rule = partial(rule, RULES, contract="token_logprobs")


@_rule(
    "LP-10",
    statement="bits(lp(rows)_i) = bits(lp(row_i alone)) = bits(... in chunks, reversed, among rubbish)",
    cases=partial(cases, min_rows=2, max_rows=9),
    special=special.logits,
    requires={"batch_invariant"},
)
def rows_alone(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """A row's bits do not depend on which rows stand beside it, on their number or order, on chunks or padding."""
    if case.temperature in ("float", "zero_dim"):
        case = case.map_rows(lambda row: dataclasses.replace(row, temperature=case.rows[0].temperature))
    together, n, fmt = ctx.call(case).values, case.size, output_format(case.dtype)
    alone = np.concatenate([ctx.call(case.only(i)).values for i in range(n)])
    chunks = [ctx.call(case.only(*part)).values for part in (range(n // 2), range(n // 2, n)) if len(part)]
    reversed_ = ctx.call(case.only(*reversed(range(n)))).values[::-1]
    width, shared = len(case.rows[0].values), case.rows[0].temperature
    rubbish = [Logits((v,) * width, 0, shared) for v in (math.nan, -math.inf, FORMATS[case.dtype].max, math.inf)]
    padded = ctx.call(case.replace(rows=(*rubbish, *case.rows, *rubbish))).values[len(rubbish) : len(rubbish) + n]
    return [
        same(alone, together, label="log-prob of the row alone", format=fmt),
        same(np.concatenate(chunks), together, label="log-prob in two chunks", format=fmt),
        same(reversed_, together, label="log-prob in reversed order", format=fmt),
        same(padded, together, label="log-prob among rows of rubbish", format=fmt),
    ]


@_rule(
    "LP-13",
    statement="bits(lp(z in any strides and leading shape)) = bits(lp(z contiguous))",
    cases=partial(cases, temperature_forms=("absent",)),
    special=lambda d: [LogitsCase((Logits((0.5, 0.25), 0),) * 9, d.dtype, tail=Tail(257, 5))],
    requires={"batch_invariant"},
)
def strides(case: LogitsCase, ctx: Context) -> list[Measurement]:
    """Transposed, sliced, offset, batched and expanded logits are the same numbers.

    Real: AReaL's vocab-parallel kernel calls ``.view`` and raises on a transposed [T, B, V].
    """
    fmt = output_format(case.dtype)
    want = ctx.call(case).values
    out = [
        same(ctx.call(case.replace(layout=name)).values, want, label=f"log-prob, {name}", format=fmt)
        for name in ("batched", "transposed", "sliced", "offset")
    ]
    alike = case.only(*[0] * case.size)
    out.append(
        same(
            ctx.call(alike.replace(layout="expanded")).values,
            ctx.call(alike).values,
            label="log-prob, expanded",
            format=fmt,
        )
    )
    return out


@_rule(
    "LP-14",
    statement="bits(lp) independent of the number of threads",
    cases=partial(cases, max_rows=2, max_width=3, temperature_forms=("absent",), tails=False),
    special=lambda d: [LogitsCase((Logits((11.0, -1.0), 0),), d.dtype, tail=Tail(40_000, k)) for k in range(3)],
    requires={"batch_invariant"},
    devices=("cpu",),
)
def threads(case: LogitsCase, ctx: Context) -> Measurement:
    """One thread or four, one row or many: the same order of summation.

    Real: ``torch.logsumexp`` splits one row over threads from V = 32,769 on, so two runs that differ in
    OMP_NUM_THREADS differ in bits.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = ctx.call(case).values
        torch.set_num_threads(4)
        four = ctx.call(case).values
    finally:
        torch.set_num_threads(before)
    return same(four, one, label="log-prob", format=output_format(case.dtype))


@_rule(
    "LP-15", statement="bits(lp(z)) = bits(lp(z)) again", cases=cases, special=special.logits, requires={"run_to_run"}
)
def run_to_run(case: LogitsCase, ctx: Context) -> Measurement:
    """The same call gives the same bits."""
    return same(ctx.call(case).values, ctx.call(case).values, label="log-prob", format=output_format(case.dtype))


@_rule(
    "LP-16",
    statement="bits(z), bits(ids), bits(T), bits(mask) unchanged by the call",
    cases=cases,
    special=special.logits,
)
def inputs_unmodified(case: LogitsCase, ctx: Context) -> Measurement:
    """No in-place division, no cast in place. Real: OpenRLHF divides the caller's logits in place."""
    modified = ctx.call(case).modified
    names = ("logits", "token_ids", "temperature", "mask")
    return holds([name not in modified for name in names], label=tuple(f"{n} unmodified" for n in names), rows=[-1] * 4)


@_rule(
    "LP-17",
    statement="lp of valid rows independent of whatever stands at masked ones, which raises nothing",
    cases=partial(cases, mask_forms=("bool", "int64", "float32"), temperature_forms=("absent",)),
    requires={"mask"},
)
def mask_selects(case: LogitsCase, ctx: Context) -> Measurement:
    """Masks select, they never multiply: NaN logits and token id -100 at a masked place touch nothing."""
    width = len(case.rows[0].values)
    spoiled = case.map_rows(
        lambda row: row if row.valid else Logits((math.nan,) * width, -100, row.temperature, valid=False)
    )
    keep = case.valid
    got, want = ctx.call(spoiled).values[keep], ctx.call(case).values[keep]
    return same(got, want, label="log-prob", rows=np.flatnonzero(keep), format=output_format(case.dtype))


@_rule(
    "LP-18",
    statement="id not in [0, V) at a valid place => error",
    cases=partial(cases, max_rows=3, tails=False, temperature_forms=("absent",)),
)
def bad_ids(case: LogitsCase, ctx: Context) -> Measurement:
    """A label out of range is never scored: not as log-prob 0 (probability 1), not as a neighbour, not modulo V.

    Real: torchforge and NeMo-RL return 0 for -100, slime, AReaL and prime-rl a finite value that looks right.
    """
    last = case.size - 1
    ids = (-1, -100, case.width, case.width + 7, 2**31 + 1, 2**32)
    wrong = [case.replace(rows=(*case.rows[:last], dataclasses.replace(case.rows[last], token=token))) for token in ids]
    return holds([ctx.refuses(x) for x in wrong], label=tuple(f"id {i} raises" for i in ids), rows=[last] * len(ids))


@_rule(
    "LP-19",
    statement="T in {0, -1, nan, inf, below min, per-token with one bad} => error",
    cases=partial(cases, max_rows=3, tails=False, temperature_forms=("float",)),
    requires={"temperature", "checks_arguments"},
)
def bad_temperature(case: LogitsCase, ctx: Context) -> Measurement:
    """Greedy is not T = 0, and z/0 is no distribution (prime-rl#3090); 1e-60 is 0 in float32."""
    temperatures = [0.0, -1.0, math.nan, math.inf, 1e-60 if case.dtype != "float64" else 0.0]

    def with_t(t: float, form: str) -> LogitsCase:
        return case.replace(temperature=form).map_rows(lambda row: dataclasses.replace(row, temperature=t))

    refused = [ctx.refuses(with_t(t, form)) for t in temperatures for form in ("float", "zero_dim", "per_token")]
    return holds(refused, label="a bad temperature raises", rows=[-1] * len(refused))


@_rule(
    "LP-20",
    statement="unequal shapes, float ids, integer logits, a mask with 0.5 => error",
    cases=partial(cases, min_rows=2, max_rows=3, tails=False, temperature_forms=("absent",)),
    requires={"checks_arguments", "mask"},
)
def bad_shapes(case: LogitsCase, ctx: Context) -> Measurement:
    """Nothing is broadcast, nothing is cast behind the caller's back, a mask does not weigh."""
    tensors = case.tensors(ctx.device)
    logits, ids = tensors["logits"], tensors["token_ids"]
    half = torch.full(ids.shape, 0.5, device=ids.device)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((logits, ids[:1]), {}),
        ((logits[:1], ids), {}),
        ((logits[..., :0], ids), {}),
        ((logits, ids.double()), {}),
        ((logits.to(torch.int64), ids), {}),
        ((logits, ids), {"mask": half}),
        ((logits, ids), {"mask": torch.full_like(half, math.nan)}),
        ((logits, ids), {"mask": torch.ones_like(ids)[:1]}),
    ]
    labels = ("ids shape", "logits shape", "V = 0", "float ids", "integer logits", "mask 0.5", "mask NaN", "mask shape")
    refused = [refuses(ctx.implementation.fn, *args, **named) for args, named in wrong]
    return holds(refused, label=tuple(f"{x} raises" for x in labels), rows=[-1] * len(labels))
