"""Aggregating metrics by declared reducers: any order and split, NaN, errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from numerics import MetricsAggregator

NAN, INF = math.nan, math.inf
REDUCERS = {"count": "sum", "kl": "mean", "diff_max": "max", "diff_min": "min", "lr": "last"}


def made(*batches: dict[str, Any], weights: tuple[int, ...] | None = None) -> MetricsAggregator:
    out = MetricsAggregator(reducers=REDUCERS)
    for step, batch in enumerate(batches):
        out.add(batch, weight=weights[step] if weights else 1, step=step)
    return out


def same(a: dict[str, float], b: dict[str, float]) -> bool:
    return repr(a) == repr(b)


def test_each_reducer() -> None:
    got = made(
        {"count": 3, "kl": 0.5, "diff_max": 1.0, "diff_min": 1.0, "lr": 1e-5},
        {"count": 4, "kl": 0.1, "diff_max": 0.5, "diff_min": 0.5, "lr": 1e-6},
        weights=(10, 30),
    ).compute()
    assert got == {"count": 7, "kl": pytest.approx(0.2, rel=2**-52), "diff_max": 1.0, "diff_min": 0.5, "lr": 1e-6}
    assert isinstance(got["count"], int)


def test_only_keys_that_were_added_come_out() -> None:
    assert made().compute() == {}
    assert made({"kl": 1.0}).compute() == {"kl": 1.0}


def test_a_mean_of_weight_0_counts_for_nothing() -> None:
    assert made({"kl": NAN}, {"kl": 2.0}, weights=(0, 5)).compute() == {"kl": 2.0}
    assert math.isnan(made({"kl": 1.0}, weights=(0,)).compute()["kl"])


@pytest.mark.parametrize("order", list(itertools.permutations([NAN, 0.5, INF])))
def test_nan_is_not_lost_by_order(order: tuple[float, ...]) -> None:
    got = made(*({"diff_max": v, "diff_min": v, "kl": v} for v in order)).compute()
    assert all(math.isnan(v) for v in got.values())


VALUES = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(
    st.lists(st.tuples(VALUES, st.integers(0, 1 << 40)), min_size=1, max_size=6),
    st.randoms(use_true_random=False),
)
def test_any_order_and_split_gives_the_same_bits(batches: list[tuple[float, int]], random: Any) -> None:
    keys = ("count", "kl", "diff_max", "diff_min")
    parts = [MetricsAggregator(reducers=REDUCERS).add(dict.fromkeys(keys, v), weight=w) for v, w in batches]
    whole = MetricsAggregator(reducers=REDUCERS)
    for v, w in batches:
        whole.add(dict.fromkeys(keys, v), weight=w)
    random.shuffle(parts)
    while len(parts) > 1:
        parts.insert(0, parts.pop().merge(parts.pop()))
    assert same(parts[0].compute(), whole.compute())
    assert same(MetricsAggregator.from_json(whole.to_json()).compute(), whole.compute())


def test_last_goes_by_step_not_by_order() -> None:
    late, early = MetricsAggregator(reducers=REDUCERS), MetricsAggregator(reducers=REDUCERS)
    late.add({"lr": 3.0}, step=7)
    early.add({"lr": 9.0}, step=2)
    assert late.merge(early).compute() == {"lr": 3.0}
    with pytest.raises(ValueError, match=r"'lr' has the values 3\.0, 4\.0 at step 7"):
        late.add({"lr": 4.0}, step=7).compute()


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([(0, 1.0), (0, 2.0), (1, 3.0)], "3.0"),  # what an earlier step had is of no matter, whenever it came
        ([(0, 1.0), (0, 1.0)], "1.0"),
        ([(2, math.nan), (2, math.nan), (1, 5.0)], "nan"),
        ([(2, math.nan), (2, 5.0)], "'lr' has the values 5.0, nan at step 2"),
        ([(0, 0.0), (0, -0.0)], "'lr' has the values -0.0, 0.0 at step 0"),
        ([(0, math.inf), (0, -math.inf), (0, 1.0)], "'lr' has the values -inf, inf at step 0"),
    ],
)
def test_last_in_any_order_and_any_split(values: list[tuple[int, float]], wanted: str) -> None:
    for order in itertools.permutations(values):
        one, two = MetricsAggregator(reducers=REDUCERS), MetricsAggregator(reducers=REDUCERS)
        for step, value in order:
            one.add({"lr": value}, step=step)
            two.merge(MetricsAggregator(reducers=REDUCERS).add({"lr": value}, step=step))
        for found in (one, two, MetricsAggregator.from_json(one.to_json())):
            assert wanted in _said(found)


def _said(aggregator: MetricsAggregator) -> str:
    try:
        return repr(aggregator.compute()["lr"])
    except ValueError as error:
        return str(error)


def test_tensors_of_no_axis_are_numbers() -> None:
    assert made({"kl": torch.tensor(0.5), "count": torch.tensor(3)}).compute() == {"count": 3, "kl": 0.5}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda a: a.add({"diff_mx": 1.0}), KeyError, "no reducer is declared for 'diff_mx'; did you mean 'diff_max'"),
        (lambda a: a.add({"kl": "0.5"}), TypeError, "'kl' is a str"),
        (lambda a: a.add({"kl": torch.zeros(2)}), TypeError, "'kl' is a Tensor; a metric must be a number"),
        (lambda a: a.add({"kl": True}), TypeError, "'kl' is a bool"),
        (lambda a: a.add({}, weight=-1), ValueError, "weight is -1"),
        (lambda a: a.add({}, weight=1.5), TypeError, "weight must be an int, got float"),
        (lambda a: a.merge(MetricsAggregator(reducers={"kl": "max"})), ValueError, "reducers is"),
        (lambda _: MetricsAggregator(reducers={"kl": "avg"}), ValueError, "reducer of 'kl' is 'avg'"),
    ],
)
def test_bad_input(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(made())


def test_nothing_is_added_by_a_call_that_fails() -> None:
    one = made({"kl": 1.0})
    with pytest.raises(KeyError):
        one.add({"kl": 5.0, "unknown": 1.0})
    assert one.compute() == {"kl": 1.0}


def test_memory_is_one_cell_a_key() -> None:
    one = made({"kl": 0.1})
    before = len(one.to_json())
    for _ in range(1000):
        one.add({"kl": 0.1})
    assert len(one.to_json()) < before + 20
