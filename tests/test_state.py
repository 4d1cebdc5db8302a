"""States under hostile use: any split, any order, any damage; the figures are compared as text, so bit for bit."""

from __future__ import annotations

import copy
import io
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from numerics import CorrectionState, DivergenceState, MetricState, MismatchState, correction
from numerics.reference.moments import Moments
from numerics.reference.state import State
from numerics.reference.sums import ExactSum
from numerics.reference.weights import WideSum

RULES: dict[str, dict[str, Any]] = {
    "tis": {"rule": "truncate", "level": "token", "upper": 2.0},
    "floor": {"rule": "truncate", "level": "sequence_geometric", "lower": 0.5, "upper": 2.0},
    "icepop": {"rule": "zero", "level": "sequence", "lower": 0.25, "upper": 4.0},
    "k1": {"rule": "reject", "level": "token", "statistic": "k1", "threshold": 0.0},
    "k3": {"rule": "reject", "level": "row_max", "statistic": "k3", "threshold": 0.5},
    "mean": {"rule": "reject", "level": "row_mean", "statistic": "k2", "threshold": 0.5},
    "veto": {"rule": "veto", "level": "row_min", "threshold": 1e-4},
}
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

Row = list[tuple[float, float, bool]]  #: (rollout, trainer, valid) of each token

HOSTILE = [0.0, -0.0, -1.0, 0.5, -1e-300, 5e-324, -1e30, 1e30, -1e308, 1e308, math.inf, -math.inf, math.nan]
VALUES = st.one_of(st.floats(-8, 0), st.sampled_from(HOSTILE), st.floats(width=32))
ROWS: st.SearchStrategy[list[Row]] = st.lists(
    st.lists(st.tuples(VALUES, VALUES, st.integers(0, 5).map(bool)), min_size=1, max_size=6), min_size=1, max_size=7
)
SOME = settings(max_examples=40, deadline=None)


def metric_state(dtype: torch.dtype = torch.float64) -> MetricState:
    return MetricState(compare_dtype=dtype, corrections=RULES)


def packed(rows: list[Row], names: list[int] | None = None) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The arguments of an update with the rows of different lengths one after the other."""
    tokens = [token for r in rows for token in r]
    ids = [name for name, r in zip(names or range(len(rows)), rows, strict=True) for _ in r]
    q, p, valid = (list(x) for x in zip(*tokens, strict=True)) if tokens else ([], [], [])
    sides = {"rollout": torch.tensor(q, dtype=torch.float64), "trainer": torch.tensor(p, dtype=torch.float64)}
    return {**sides, "mask": torch.tensor(valid, dtype=torch.bool)}, {"row_ids": torch.tensor(ids, dtype=torch.int64)}


def batch(seed: int, rows: int = 6, length: int = 9) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = -4 * torch.rand(rows, length, generator=generator)
    p = q + 0.2 * torch.randn(rows, length, generator=generator)
    return q, p, torch.rand(rows, length, generator=generator) > 0.3


def text(state: State) -> str:
    """Totals and figures, exactly; repr tells -0.0 from 0.0 and one NaN not from another."""
    return state.to_json() + repr(state.compute())  # type: ignore[attr-defined]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small tensors gain nothing from threads; on a busy machine they wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# ---------------------------------------------------------------------------------------------------------- partitions


@SOME
@given(ROWS, st.sampled_from([torch.float32, torch.float64]), st.randoms(use_true_random=False), st.integers(1, 4))
def test_any_split_between_rows(rows: list[Row], dtype: torch.dtype, luck: random.Random, size: int) -> None:
    """In any order, in updates of any number of rows, in states merged as a chain or a tree, with any row ids."""
    tensors, ids = packed(rows)
    want = text(metric_state(dtype).update(**tensors, **ids))
    order = luck.sample(range(len(rows)), len(rows))
    groups = [order[i : i + size] for i in range(0, len(order), size)]

    one = metric_state(dtype)
    for group in groups:
        tensors, ids = packed([rows[i] for i in group], [luck.randrange(-(10**6), 10**6) * 8 + i for i in group])
        one.update(**tensors, **ids)
    assert text(one) == want

    level = []
    for group in groups:
        tensors, ids = packed([rows[i] for i in group])
        level.append(metric_state(dtype).update(**tensors, **ids))
    while len(level) > 1:
        luck.shuffle(level)
        pairs = itertools.zip_longest(level[::2], level[1::2])
        level = [a.merge(b if b is not None else metric_state(dtype)) for a, b in pairs]
    assert text(level[0]) == want


@SOME
@given(ROWS)
def test_order_within_a_row_changes_nothing(rows: list[Row]) -> None:
    (tensors, ids), (reversed_tensors, same_ids) = packed(rows), packed([r[::-1] for r in rows])
    assert text(metric_state().update(**tensors, **ids)) == text(metric_state().update(**reversed_tensors, **same_ids))


ROW_FIGURES = ("row", "seq", "ppl_rollout", "ppl_trainer", "ppl_ratio", "log_ppl", "log1p_chi2_seq", "chi2_seq")
OF_ROWS = ("normalization_gap_",)


def of_tokens(figures: dict[str, Any]) -> dict[str, str]:
    """The figures that do not know rows, as text."""
    kept = {
        name: repr(value)
        for name, value in figures.items()
        if (not name.startswith((*ROW_FIGURES, *OF_ROWS)) or name.endswith("_token")) and not name.endswith("row_count")
    }
    rows_only = ("floor", "icepop", "k3", "mean", "veto")
    return {
        n: v
        for n, v in kept.items()
        if not n.startswith(tuple(f"correction/{r}/" for r in rows_only)) and "row" not in n
    }


@SOME
@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 3))
def test_token_figures_may_be_split_inside_rows(rows: list[Row], luck: random.Random, size: int) -> None:
    tensors, ids = packed(rows)
    whole = of_tokens(metric_state().update(**tensors, **ids).compute())
    tokens = [token for r in rows for token in r]
    luck.shuffle(tokens)
    split = metric_state()
    for i in range(0, len(tokens), size):
        some, some_ids = packed([tokens[i : i + size]])
        split.update(**some, **some_ids)
    assert of_tokens(split.compute()) == whole
    named = {"k3", "ess_fraction", "ratio_std", "logprobs_diff_std", "probs_pearson", "ppl_rollout_token", "jsd"}
    assert (
        named | {"normalization_gap", "log1p_chi2_token", "correction/tis/ess_fraction", "ulp_histogram"}
        <= whole.keys()
    )


def test_padding_and_packing_are_one() -> None:
    """A padded batch, the same packed by row ids, and a 3-D view of it."""
    q, p, mask = batch(1)
    want = text(metric_state().update(q, p, mask))
    ids = torch.arange(6)[:, None].expand(q.shape)[mask]
    for dtype in (torch.int64, torch.int32, torch.uint8):
        assert text(metric_state().update(q[mask], p[mask], row_ids=ids.to(dtype))) == want
    three = [x.reshape(2, 3, 9) for x in (q, p, mask)]
    assert text(metric_state().update(*three)) == want
    assert text(metric_state().update(q.T, p.T, mask.T, row_ids=torch.arange(6).expand(9, 6))) == want


# --------------------------------------------------------------------------------------------------------------- empty


EMPTY: list[tuple[int, ...]] = [(0,), (0, 5), (5, 0), (2, 0, 3)]


@pytest.mark.parametrize("shape", EMPTY)
def test_an_empty_update_changes_no_bit(shape: tuple[int, ...]) -> None:
    nothing = torch.empty(shape)
    assert text(metric_state().update(nothing, nothing)) == text(metric_state())
    assert text(metric_state().update(*batch(1)).update(nothing, nothing)) == text(metric_state().update(*batch(1)))


def test_masked_out_is_empty() -> None:
    q = torch.full((3, 4), math.nan)
    assert text(metric_state().update(q, -q, torch.zeros(3, 4))) == text(metric_state())


def test_merging_with_an_empty_state_changes_no_bit() -> None:
    want = text(metric_state().update(*batch(1)))
    assert text(metric_state().update(*batch(1)).merge(metric_state())) == want
    assert text(metric_state().merge(metric_state().update(*batch(1)))) == want
    assert text(metric_state().merge(metric_state())) == text(metric_state())


def test_figures_of_nothing() -> None:
    for name, value in metric_state().compute().items():
        field = name.rsplit("/", 1)[-1]
        if field in ("epsilon", "compare_dtype"):
            continue
        if field == "ulp_histogram":
            assert set(value) == {0}
        else:
            assert value == 0 if isinstance(value, int) else math.isnan(value), name


# ------------------------------------------------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    ("mine", "other", "message"),
    [
        (DivergenceState, lambda: DivergenceState(epsilon=0.5), r"epsilon is 1e-06 here and 0\.5 there"),
        (
            MismatchState,
            lambda: MismatchState(compare_dtype=torch.float64),
            r"compare_dtype is torch\.float32 here and torch\.float64 there",
        ),
        (
            lambda: CorrectionState(**RULES["tis"]),
            lambda: CorrectionState(**{**RULES["tis"], "upper": 3.0}),
            r"upper is 2\.0 here and 3\.0 there",
        ),
        (
            lambda: CorrectionState(**RULES["tis"]),
            lambda: CorrectionState(**RULES["veto"]),
            r"rule is 'truncate' here and 'veto' there, level is 'token' here and 'row_min' there",
        ),
        (metric_state, lambda: metric_state(torch.float32), r"compare_dtype is torch\.float64 here"),
        (
            MetricState,
            lambda: MetricState(corrections={"tis": RULES["tis"]}),
            r"corrections is \{\} here and \{'tis': .*'upper': 2\.0.*\} there",
        ),
    ],
)
def test_other_options_are_refused(mine: Callable[[], State], other: Callable[[], State], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mine().merge(other())


def test_other_kinds_are_refused() -> None:
    kinds: list[Any] = [MismatchState(), DivergenceState(), CorrectionState(**RULES["tis"]), MetricState()]
    for a, b in itertools.permutations(kinds, 2):
        with pytest.raises(TypeError, match=f"cannot merge a {type(b).__name__} into a {type(a).__name__}"):
            a.merge(b)
        with pytest.raises(ValueError, match=f"a saved '{b.kind}' state cannot be read as '{a.kind}'"):
            type(a).from_json(b.to_json())
    with pytest.raises(TypeError, match="cannot merge a dict"):
        MetricState().merge({})  # type: ignore[arg-type]


def test_a_rule_written_out_is_the_same_rule() -> None:
    """Bounds that are None, and 2 for 2.0, are no other options."""
    short = MetricState(corrections={"tis": {"rule": "truncate", "level": "token", "upper": 2}})
    long = MetricState(corrections={"tis": {**RULES["tis"], "lower": None, "statistic": None, "threshold": None}})
    short.update(*batch(1)).merge(long.update(*batch(2)))
    want = MetricState(corrections={"tis": RULES["tis"]}).update(*batch(1)).update(*batch(2))
    assert repr(short.compute()) == repr(want.compute())


def test_the_order_of_rules_does_not_matter() -> None:
    other = MetricState(compare_dtype=torch.float64, corrections=dict(reversed(RULES.items()))).update(*batch(2))
    got = metric_state().update(*batch(1)).merge(other).compute()
    want = metric_state().update(*batch(1)).update(*batch(2)).compute()
    assert repr(got) == repr(want)


def test_merging_leaves_the_other_state_alone_and_shares_nothing() -> None:
    a, b = metric_state(), metric_state().update(*batch(2))
    before = text(b)
    a.merge(b).update(*batch(3))
    assert text(b) == before
    doubled = metric_state().update(*batch(1))
    doubled.merge(doubled)
    assert text(doubled) == text(metric_state().update(*batch(1)).update(*batch(1)))


def test_options_are_the_states_own() -> None:
    rules = copy.deepcopy(RULES)
    one = MetricState(compare_dtype=torch.float64, corrections=rules)
    rules["tis"]["upper"] = 9.0
    del rules["veto"]
    assert text(one.update(*batch(1))) == text(metric_state().update(*batch(1)))


def test_names_of_corrections_are_strings() -> None:
    """1 and "1" would be one key in the figures."""
    with pytest.raises(TypeError, match="names of corrections must be strings"):
        MetricState(corrections={1: RULES["tis"]})  # type: ignore[dict-item]


# --------------------------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DTYPES, DTYPES)))
def test_any_mix_of_dtypes_and_no_input_is_touched(a: torch.dtype, b: torch.dtype) -> None:
    """A value counts as what it is after one cast: the same figures as from the widened tensors under float64."""
    q, p, mask = batch(4)
    q, p, mask = q.to(a), p.to(b).requires_grad_(), mask.to(torch.float32)
    kept = q.clone(), p.detach().clone(), mask.clone()
    for dtype in (torch.float32, torch.float64):
        got = metric_state(dtype).update(q, p, mask)
        assert got.compute()["valid_count"] == int(mask.sum())
    assert repr(got.compute()) == repr(metric_state().update(q.double(), p.detach().double(), mask == 1).compute())
    for now, then in zip((q, p.detach(), mask), kept, strict=True):
        assert torch.equal(now, then)
    assert p.grad is None


def test_what_is_masked_is_never_read() -> None:
    q, p, mask = batch(5)
    want = text(metric_state().update(q, p, mask))
    for seed, junk in enumerate((math.nan, math.inf, -math.inf, 1e38, -1e38, 5e-45)):
        noise = torch.where(torch.rand(q.shape, generator=torch.Generator().manual_seed(seed)) > 0.5, junk, -junk)
        assert (
            text(metric_state().update(torch.where(mask, q, noise), torch.where(mask, p, noise.flip(0)), mask)) == want
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("side", ["rollout", "trainer", "both"])
def test_what_is_valid_is_never_hidden(value: float, side: str) -> None:
    q, p, mask = batch(6)
    mask[2, 3] = True
    q, p = q.clone(), p.clone()
    if side != "trainer":
        q[2, 3] = value
    if side != "rollout":
        p[2, 3] = value
    state = metric_state().update(q, p, mask)
    figures = state.compute()
    assert figures["nonfinite_count"] == 1
    for name in ("k1", "k2", "k3", "signed_mean"):
        assert not math.isfinite(figures[name]), name
    assert text(MetricState.from_json(state.to_json())) == text(state)
    rows = [metric_state().update(q[i : i + 1], p[i : i + 1], mask[i : i + 1]) for i in (5, 2, 0, 1, 4, 3)]
    for other in rows[1:]:
        rows[0].merge(other)
    assert text(rows[0]) == text(state)


def test_a_refused_update_leaves_the_state_as_it_was() -> None:
    q, p, mask = batch(7)
    state = metric_state().update(q, p, mask)
    before = text(state)
    bad: list[tuple[Any, dict[str, Any], type[Exception]]] = [
        ((q, p[:, :-1]), {}, ValueError),
        ((q, p, mask * 0.5), {}, ValueError),
        ((q, p.long()), {}, TypeError),
        ((q, p, mask), {"row_ids": q}, TypeError),
        ((q, p, mask), {"row_ids": torch.zeros(3, dtype=torch.int64)}, ValueError),
        ((q.tolist(), p), {}, TypeError),
    ]
    for args, kwargs, error in bad:
        with pytest.raises(error):
            state.update(*args, **kwargs)
        assert text(state) == before


def test_the_figures_of_a_correction_come_under_its_name() -> None:
    q, p, mask = batch(8)
    got = MetricState(corrections=RULES).update(q, p, mask).compute()
    for name, rule in RULES.items():
        want = correction(q, p, mask, **rule).diagnostics.as_dict()
        assert {k: repr(got[f"correction/{name}/{k}"]) for k in want} == {k: repr(v) for k, v in want.items()}
    assert sum(k.startswith("correction/") for k in got) == len(RULES) * len(want)


def test_counts_of_the_same_tokens_agree_in_all_parts() -> None:
    state = metric_state(torch.float32).update(*(x.double() for x in batch(9)[:2]), batch(9)[2])
    mismatch, divergence = state.mismatch.compute().as_dict(), state.divergence.compute().as_dict()
    shared = mismatch.keys() & divergence.keys()
    assert {"valid", "valid_count", "nonfinite_count", "narrowed_count", "compare_dtype"} == shared
    assert all(mismatch[name] == divergence[name] for name in shared)


def test_extremes_that_are_zero_have_no_sign() -> None:
    """k1 = -d is -0.0 where the sides are equal and +0.0 where they are -0.0 and 0.0; no order may show."""
    rule = {"rule": "reject", "level": "token", "statistic": "k1", "threshold": 1.0}
    q, p = torch.tensor([[0.0], [-1.0]]), torch.tensor([[-0.0], [-1.0]])
    texts = {text(CorrectionState(**rule).update(q[o], p[o])) for o in ([0, 1], [1, 0])}
    texts |= {text(CorrectionState(**rule).update(q[a], p[a]).update(q[b], p[b])) for a, b in (([0], [1]), ([1], [0]))}
    assert len(texts) == 1


# -------------------------------------------------------------------------------------------------------------- saving


@SOME
@given(ROWS)
def test_saving_is_exact(rows: list[Row]) -> None:
    """As JSON, as a plain dictionary, and through torch.save, which reads it with weights_only."""
    tensors, ids = packed(rows)
    state = metric_state().update(**tensors, **ids)
    want = text(state)
    assert text(MetricState.from_json(state.to_json())) == want
    assert text(MetricState.from_state_dict(json.loads(json.dumps(state.state_dict())))) == want
    file = io.BytesIO()
    torch.save(state.state_dict(), file)
    file.seek(0)
    assert text(MetricState.from_state_dict(torch.load(file, weights_only=True))) == want
    more = metric_state().update(*batch(1))
    assert text(MetricState.from_json(state.to_json()).merge(more)) == text(state.merge(more))


def test_a_saved_state_holds_no_float() -> None:
    """Floats are hexadecimal text and large integers too, so no JSON reader can round them."""

    def plain(x: Any) -> bool:
        if isinstance(x, dict):
            return all(type(k) is str and plain(v) for k, v in x.items())
        if isinstance(x, list):
            return all(map(plain, x))
        return x is None or type(x) in (str, bool) or (type(x) is int and abs(x) < 2**53)

    assert plain(metric_state().update(*batch(1)).state_dict())


def cells(x: Any, kind: type) -> int:
    """How many cells of a kind totals hold."""
    if isinstance(x, kind):
        return 1
    inside = (
        x.values() if isinstance(x, dict) else x if isinstance(x, tuple) else vars(x).values() if vars_of(x) else ()
    )
    return sum(cells(v, kind) for v in inside)


def vars_of(x: Any) -> bool:
    return hasattr(x, "__dict__")


def test_memory_does_not_grow_with_tokens() -> None:
    """1000 times the tokens add 10 binary digits to a sum, so less than 4 hexadecimal ones and a decimal count.

    In all, whatever the data and up to 2^64 tokens: a sum has at most 4260 binary digits, 1065 hexadecimal ones; a
    window at most 12 digits below 2^97, 25 hexadecimal ones; their names and counts 100 characters a cell.
    """
    small = metric_state(torch.float32).update(*batch(1, 20, 10))
    large = metric_state(torch.float32).update(*batch(1, 20, 10))
    for seed in range(2, 12):
        large.update(*batch(seed, 20, 1000))
    assert large.compute()["valid_count"] > 900 * small.compute()["valid_count"]
    sums, windows, moments = (cells(small.totals, kind) for kind in (ExactSum, WideSum, Moments))
    grown = len(large.to_json()) - len(small.to_json())
    assert grown < 8 * sums + 12 * 12 * windows + 400
    huge = metric_state()
    for x in (1e308, -1e308, 5e-324, 1e150, -1e-150, 700.0, -700.0, 0.0):
        huge.update(torch.full((3, 50), x, dtype=torch.float64), torch.zeros(3, 50, dtype=torch.float64))
    bound = 1200 * cells(huge.totals, ExactSum) + 12 * 80 * windows + 200 * (sums + windows + moments) + 4000
    assert len(huge.to_json()) < bound


# -------------------------------------------------------------------------------------------------------------- damage


def saved() -> dict[str, Any]:
    return json.loads(metric_state().update(*batch(1)).to_json())  # type: ignore[no-any-return]


def entry(tree: Any, *path: str) -> Any:
    """The cell at the end of a path through the "items" of dictionaries."""
    for name in path:
        tree = next(v for k, v in tree["items"] if k == name) if "items" in tree else tree[name]
    return tree


def items(tree: Any, *path: str) -> list[list[Any]]:
    return entry(tree, *path)["items"]  # type: ignore[no-any-return]


Damage = Callable[[dict[str, Any]], object]
DAMAGES: list[tuple[str, Damage, str]] = [
    ("no schema", lambda s: s.pop("schema"), "not a saved state of schema 'numerics.state/1': found None"),
    ("other schema", lambda s: s.update(schema="numerics.state/9"), "found 'numerics.state/9'"),
    ("no kind", lambda s: s.pop("kind"), "a saved None state cannot be read as 'metrics'"),
    ("other kind", lambda s: s.update(kind="divergence"), "a saved 'divergence' state cannot be read as 'metrics'"),
    ("no options", lambda s: s.pop("options"), "damaged: KeyError: 'options'"),
    ("no totals", lambda s: s.pop("totals"), "damaged: KeyError: 'totals'"),
    ("options of a wrong type", lambda s: s.update(options=[1, 2]), "damaged: TypeError"),
    ("an option is lost", lambda s: items(s, "options").pop(1), r"incomplete options: epsilon is 1e-06 here and None"),
    ("an option too many", lambda s: items(s, "options").append(["gamma", 1]), "damaged: TypeError: .*gamma"),
    ("an option out of range", lambda s: items(s, "options").__setitem__(1, ["epsilon", -1]), "epsilon is -1"),
    ("a part is lost", lambda s: items(s, "totals").pop(0), r"totals has \['correction/floor', .*\], not"),
    ("a part too many", lambda s: items(s, "totals").append(["x", 1]), r"totals has .*'x'\], not"),
    ("a sum is lost", lambda s: items(s, "totals", "divergence", "tokens").pop(), r"totals\.divergence\.tokens has"),
    (
        "a field of a cell is lost",
        lambda s: entry(s, "totals", "divergence", "tokens", "k3").pop("units"),
        "damaged: KeyError: 'ExactSum without units'",
    ),
    (
        "a field of a cell too many",
        lambda s: entry(s, "totals", "divergence", "tokens", "k3").update(more=1),
        "damaged: TypeError: .*more",
    ),
    (
        "a cell of another kind",
        lambda s: entry(s, "totals", "divergence").update(items=[["tokens", {"cell": "Tensor"}]]),
        "damaged: KeyError: 'Tensor'",
    ),
    (
        "text for a number",
        lambda s: entry(s, "totals", "divergence", "tokens", "k3").update(units="5"),
        r"totals\.divergence\.tokens\.k3\.units is a str, not a int",
    ),
    (
        "true for a number",
        lambda s: entry(s, "totals", "divergence", "ratio").update(count=True),
        r"totals\.divergence\.ratio\.count is a bool, not a int",
    ),
    (
        "an integer for a float",
        lambda s: entry(s, "totals", "divergence", "ratio", "extremes").update(low=3),
        r"totals\.divergence\.ratio\.extremes\.low is a int, not a float",
    ),
    (
        "null for a cell",
        lambda s: entry(s, "totals", "divergence", "ratio").update(total=None),
        r"totals\.divergence\.ratio\.total is a NoneType, not a ExactSum",
    ),
    (
        "a negative count",
        lambda s: entry(s, "totals", "divergence", "ratio").update(count=-3),
        r"totals\.divergence\.ratio\.count is -3, a negative count",
    ),
    (
        "a float that is no text",
        lambda s: entry(s, "totals", "divergence", "ratio").update(count=1.5),
        "damaged: TypeError",
    ),
    (
        "a literal NaN",
        lambda s: entry(s, "totals", "divergence", "ratio", "extremes").update(low=math.nan),
        "damaged: TypeError",
    ),
    (
        "a float out of range",
        lambda s: entry(s, "totals", "divergence", "ratio", "extremes").update(low={"float": "0x1p5000"}),
        "damaged: OverflowError",
    ),
    (
        "a float that is none",
        lambda s: entry(s, "totals", "divergence", "ratio", "extremes").update(low={"float": "zero"}),
        "damaged: ValueError",
    ),
    (
        "an integer that is none",
        lambda s: entry(s, "totals", "divergence", "ratio").update(count={"int": "0xzz"}),
        "damaged: ValueError",
    ),
    (
        "digits of a window that are none",
        lambda s: entry(s, "totals", "divergence", "weights", "first").update(digits={"items": [[0, "1"]]}),
        r"weights\.first\.digits does not map integers to counts",
    ),
    (
        "a window without digits",
        lambda s: entry(s, "totals", "divergence", "weights", "first").update(digits=7),
        r"weights\.first\.digits does not map integers to counts",
    ),
    (
        "a histogram of another length",
        lambda s: entry(s, "totals", "mismatch", "ulp_histogram").pop(),
        r"totals\.mismatch\.ulp_histogram has 65 entries, not 66",
    ),
    (
        "items that are no pairs",
        lambda s: entry(s, "totals", "divergence").update(items=[1, 2]),
        "damaged: TypeError",
    ),
    (
        "a dtype that is none",
        lambda s: items(s, "options").__setitem__(0, ["compare_dtype", {"dtype": "load"}]),
        "damaged",
    ),
    (
        "a dtype too narrow",
        lambda s: items(s, "options").__setitem__(0, ["compare_dtype", {"dtype": "int8"}]),
        "torch.int8",
    ),
]


@pytest.mark.parametrize(("damage", "message"), [d[1:] for d in DAMAGES], ids=[d[0] for d in DAMAGES])
def test_a_damaged_state_is_refused_with_its_place(damage: Damage, message: str) -> None:
    state = saved()
    damage(state)
    with pytest.raises(ValueError, match=message):
        MetricState.from_json(json.dumps(state))


@pytest.mark.parametrize(
    "junk",
    ["", "null", "[]", "5", '"text"', "NaN", "{}", "[" * 100_000, "9" * 5000, "{" + '"a":' * 3, "\x00", "{'a': 1}"],
)
def test_text_that_is_no_state_is_refused(junk: str) -> None:
    with pytest.raises(ValueError, match="not a saved state"):
        MetricState.from_json(junk)


def test_text_cut_anywhere_is_refused() -> None:
    whole = metric_state().update(*batch(1)).to_json()
    for end in range(0, len(whole), 997):
        with pytest.raises(ValueError, match="not a saved state"):
            MetricState.from_json(whole[:end])


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(leaf for k, v in children for leaf in leaves(v, (*path, k)))]


JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["cell", "items", "int", "float", "dtype", "units"]), inner, max_size=2),
    ),
    max_leaves=5,
)
TEMPLATE = json.loads(MetricState(corrections={"tis": RULES["tis"]}).update(*batch(1)).to_json())
PATHS = [path for path in leaves(TEMPLATE) if path]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(PATHS), JUNK, st.booleans())
def test_whatever_is_put_in_a_saved_state(path: tuple[Any, ...], junk: Any, lose: bool) -> None:
    """It is read as a state of the same form, or refused with a ValueError; no other error, no state half read."""
    tree = copy.deepcopy(TEMPLATE)
    parent = tree
    for step in path[:-1]:
        parent = parent[step]
    if lose:
        del parent[path[-1]]
    else:
        parent[path[-1]] = junk
    try:
        state = MetricState.from_json(json.dumps(tree))
    except ValueError as error:
        if "saved" not in str(error):
            raise
    else:
        assert MetricState.from_json(state.to_json()).to_json() == state.to_json()
