"""`numerics.integrations.verl`: the drop-in against `numerics.mismatch`, and the adapters."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import numerics
from numerics.formats import FORMATS
from numerics.integrations.verl import KEYS, calculate_debug_metrics, debug, debug_metrics, drop_in
from numerics.strategies import verl_batches

VERLS_KEYS = {
    "training/rollout_probs_diff_valid",
    "training/rollout_probs_diff_max",
    "training/rollout_probs_diff_mean",
    "training/rollout_probs_diff_std",
    "training/rollout_actor_probs_pearson_corr",
}
COUNTS = {"valid", "valid_count", "nonfinite_count", "logprobs_mismatch_count", "bit_mismatch_count"}


def example_batch() -> dict[str, torch.Tensor]:
    return {
        "rollout_log_probs": torch.tensor([[-0.5, -1.0, -2.0], [-0.25, -3.0, math.nan]]),
        "old_log_probs": torch.tensor([[-0.5, -1.5, -2.0], [-0.75, -3.0, math.inf]]),
        "responses": torch.zeros(2, 3, dtype=torch.int64),
        "response_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
    }


def agrees(metrics: dict[str, float], expected: numerics.Mismatch) -> bool:
    return all(same(metrics[key], getattr(expected, field)) for field, key in KEYS.items())


def same(a: float, b: float) -> bool:
    return type(a) is type(b) and (a == b or (math.isnan(a) and math.isnan(b)))


def tensordict_of(batch: dict[str, torch.Tensor]) -> Any:
    return pytest.importorskip("tensordict").TensorDict(batch, batch_size=[2])


# --- what it returns


def test_keys_are_verls_the_proposed_ones_and_ours_and_values_are_python_numbers() -> None:
    metrics = calculate_debug_metrics(example_batch())
    assert list(metrics) == list(KEYS.values())
    assert set(metrics) > VERLS_KEYS
    assert {f"training/rollout_logprobs_{x}" for x in ("mismatch_count", "diff_max", "diff_mean")} < set(metrics)
    for field, key in KEYS.items():
        assert key.startswith("training/rollout_")
        assert type(metrics[key]) is (int if field in COUNTS else float)


def test_figures_of_a_small_batch() -> None:
    metrics = calculate_debug_metrics(example_batch())
    assert metrics["training/rollout_probs_diff_valid"] == 1
    assert metrics["training/rollout_logprobs_valid_count"] == 5
    assert metrics["training/rollout_logprobs_mismatch_count"] == 2
    assert metrics["training/rollout_logprobs_diff_max"] == 0.5
    assert metrics["training/rollout_logprobs_diff_mean"] == 0.2
    assert metrics["training/rollout_logprobs_nonfinite_count"] == 0


@pytest.mark.parametrize(
    "wrap",
    [
        dict,
        tensordict_of,
        lambda batch: SimpleNamespace(batch=batch),
        lambda batch: SimpleNamespace(batch=tensordict_of(batch)),
    ],
    ids=["mapping", "TensorDict", "object with a mapping", "object with a TensorDict"],
)
def test_every_kind_of_batch(wrap: Any) -> None:
    batch = example_batch()
    expected = numerics.mismatch(batch["rollout_log_probs"], batch["old_log_probs"], batch["response_mask"])
    assert agrees(calculate_debug_metrics(wrap(batch)), expected)


def test_inputs_are_not_modified_and_may_require_a_gradient() -> None:
    batch = example_batch()
    before = {name: tensor.clone() for name, tensor in batch.items()}
    batch["old_log_probs"].requires_grad_()
    calculate_debug_metrics(batch)
    assert set(batch) == set(before)
    for name, tensor in batch.items():
        torch.testing.assert_close(tensor.detach(), before[name], rtol=0, atol=0, equal_nan=True)


def test_one_ulp_is_counted_where_probabilities_cannot_see_it() -> None:
    batch = {
        "rollout_log_probs": torch.tensor([[-0.10000000149]]),
        "old_log_probs": torch.tensor([[-0.10000000894]]),
    }
    metrics = calculate_debug_metrics(batch)
    assert metrics["training/rollout_probs_diff_max"] == 0
    assert metrics["training/rollout_logprobs_mismatch_count"] == 1
    assert metrics["training/rollout_logprobs_diff_max"] == 2.0**-27


def test_all_masked() -> None:
    metrics = calculate_debug_metrics(example_batch() | {"response_mask": torch.zeros(2, 3, dtype=torch.int64)})
    for field, key in KEYS.items():
        assert metrics[key] == 0 if field in COUNTS else math.isnan(metrics[key]), key


def test_a_nonfinite_valid_value_shows() -> None:
    batch = example_batch()
    batch["old_log_probs"][0, 0] = math.nan
    metrics = calculate_debug_metrics(batch)
    assert metrics["training/rollout_logprobs_nonfinite_count"] == 1
    assert math.isnan(metrics["training/rollout_logprobs_diff_max"])
    assert math.isnan(metrics["training/rollout_probs_diff_mean"])


# --- which tensors it reads


def test_unscaled_log_probs_are_preferred() -> None:
    """verl#4162: the trainer scales by the temperature, the rollout reports raw log-probs."""
    logits = torch.tensor([[[2.0, 0.0, -1.0], [0.5, 0.25, 3.0]]])
    token_ids = torch.tensor([[0, 1]])
    raw, processed = numerics.token_logprobs_pair(logits, token_ids, temperature=0.5)
    tempered = {"rollout_log_probs": raw, "old_log_probs": processed}
    assert calculate_debug_metrics(tempered)["training/rollout_logprobs_mismatch_count"] == 2
    metrics = calculate_debug_metrics(tempered | {"log_probs_for_metrics": raw.clone()})
    assert metrics["training/rollout_logprobs_mismatch_count"] == 0
    assert metrics["training/rollout_logprobs_diff_max"] == 0
    assert metrics["training/rollout_probs_diff_max"] == 0


def test_unscaled_log_probs_suffice() -> None:
    batch = example_batch()
    batch["log_probs_for_metrics"] = batch.pop("old_log_probs")
    assert calculate_debug_metrics(batch) == calculate_debug_metrics(example_batch())


def test_response_mask_wins_over_attention_mask() -> None:
    batch = example_batch() | {"attention_mask": torch.zeros(2, 7, dtype=torch.int64)}
    assert calculate_debug_metrics(batch)["training/rollout_logprobs_valid_count"] == 5


def test_response_mask_needs_no_responses() -> None:
    batch = example_batch()
    del batch["responses"]
    assert calculate_debug_metrics(batch)["training/rollout_logprobs_valid_count"] == 5


@pytest.mark.parametrize("prompt", [0, 4])
def test_last_columns_of_the_attention_mask(prompt: int) -> None:
    batch = example_batch()
    mask = batch.pop("response_mask")
    batch["attention_mask"] = torch.cat([torch.ones(2, prompt, dtype=torch.int64), mask], dim=1)
    assert calculate_debug_metrics(batch) == calculate_debug_metrics(example_batch())


def test_attention_mask_with_an_empty_response() -> None:
    empty = torch.zeros(2, 0)
    batch = {"rollout_log_probs": empty, "old_log_probs": empty, "responses": empty.long()}
    metrics = calculate_debug_metrics(batch | {"attention_mask": torch.ones(2, 4, dtype=torch.int64)})
    assert metrics["training/rollout_probs_diff_valid"] == 0


def test_without_a_mask_all_tokens_count() -> None:
    batch = example_batch()
    del batch["response_mask"]
    metrics = calculate_debug_metrics(batch)
    assert metrics["training/rollout_logprobs_valid_count"] == 6
    assert metrics["training/rollout_logprobs_nonfinite_count"] == 1


def test_none_counts_as_absent() -> None:
    batch = example_batch() | {"log_probs_for_metrics": None, "response_mask": None}
    batch["attention_mask"] = torch.cat([torch.ones(2, 2), example_batch()["response_mask"]], dim=1)
    assert calculate_debug_metrics(batch) == calculate_debug_metrics(example_batch())


# --- what it refuses


@pytest.mark.parametrize(
    ("absent", "named"),
    [
        (["rollout_log_probs"], ["'rollout_log_probs'"]),
        (["old_log_probs"], ["'log_probs_for_metrics' or 'old_log_probs'"]),
        (["rollout_log_probs", "old_log_probs"], ["'rollout_log_probs'", "'log_probs_for_metrics' or 'old_log_probs'"]),
        (["response_mask", "responses"], ["'responses'", "'attention_mask'"]),
        (["rollout_log_probs", "response_mask", "responses"], ["'rollout_log_probs'", "'responses'"]),
    ],
)
def test_missing_keys_are_all_named_with_what_was_found(absent: list[str], named: list[str]) -> None:
    batch = example_batch() | {"attention_mask": torch.ones(2, 3)}
    for key in absent:
        del batch[key]
    with pytest.raises(KeyError) as error:
        calculate_debug_metrics(batch)
    lacking, _, found = error.value.args[0].partition("; found: ")
    assert all(name in lacking for name in named)
    assert all(repr(name) in found for name in batch)


@pytest.mark.parametrize("batch", [{}, SimpleNamespace(batch=None)], ids=["empty mapping", "no tensors"])
def test_an_empty_batch_says_so(batch: Any) -> None:
    with pytest.raises(KeyError, match=r"rollout_log_probs.*found: nothing"):
        calculate_debug_metrics(batch)


@pytest.mark.parametrize("batch", [None, 3, torch.zeros(2), [torch.zeros(2)]])
def test_what_is_no_batch(batch: Any) -> None:
    with pytest.raises(TypeError, match="must be a mapping of tensors"):
        calculate_debug_metrics(batch)


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"response_mask": torch.full((2, 3), 0.5)}, ValueError, "only 0 and 1"),
        ({"response_mask": torch.ones(2, 5)}, ValueError, r"\(2, 5\).*\(2, 3\)"),
        ({"old_log_probs": torch.zeros(2, 1)}, ValueError, r"nothing is broadcast"),
        ({"old_log_probs": torch.zeros(2, 3, dtype=torch.int64)}, TypeError, "floating"),
    ],
)
def test_bad_tensors(change: dict[str, torch.Tensor], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        calculate_debug_metrics(example_batch() | change)


# --- every figure, on generated batches


@settings(deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from(sorted(FORMATS)),
    mask_key=st.sampled_from(["response_mask", "attention_mask"]),
)
def test_every_figure_is_that_of_mismatch(data: st.DataObject, dtype: str, mask_key: str) -> None:
    batch = data.draw(verl_batches(dtype=dtype, mask_key=mask_key), label="batch")
    trainer = batch.get("log_probs_for_metrics", batch["old_log_probs"])
    width = batch["responses"].shape[1]
    mask = batch[mask_key][:, batch[mask_key].shape[1] - width :]
    expected = numerics.mismatch(batch["rollout_log_probs"], trainer, mask)
    assert agrees(calculate_debug_metrics(batch), expected)


# --- the adapters


def test_drop_in_passes_the_suite() -> None:
    results = numerics.check(drop_in, dtypes=["float32"], max_examples=20, seed=0)
    assert [r for r in results if not r.ok] == []
    assert sum(r.status == "passed" for r in results) >= 14


@pytest.mark.parametrize("name", ["debug_metrics", "drop_in"])
def test_the_suite_finds_the_adapters_by_name(name: str) -> None:
    from numerics.suite.implementation import resolve

    (found,) = resolve(f"numerics.integrations.verl:{name}")
    assert found is getattr(importlib.import_module("numerics.integrations.verl"), name)
    assert found.provides - {"mask"} == {"run_to_run"}


def test_debug_metrics_calls_verl_with_a_data_proto(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    def of_verl(data: Any) -> dict[str, float]:
        seen.append(data.batch)
        return {"training/rollout_probs_diff_max": 0.25, "training/other": 1.0}

    stand_in(monkeypatch, "verl.utils.debug.metrics", calculate_debug_metrics=of_verl)
    proto = SimpleNamespace(from_dict=lambda tensors: SimpleNamespace(batch=tensors))
    stand_in(monkeypatch, "verl.protocol", DataProto=proto)
    q, p, mask = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -3.0]), torch.tensor([1, 0])
    assert debug_metrics.fn(q, p, mask) == {"probs_diff_max": 0.25}
    assert {name: tuple(x.shape) for name, x in seen[0].items()} == dict.fromkeys(
        ("rollout_log_probs", "old_log_probs", "response_mask", "responses"), (1, 2)
    )
    assert torch.equal(seen[0]["old_log_probs"][0], p)


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """A module ``name`` with ``contents``, under packages that exist for this test only."""
    debug._verl.cache_clear()
    parts = name.split(".")
    for package in (".".join(parts[:k]) for k in range(1, len(parts))):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def _forget_verl() -> Any:
    yield
    debug._verl.cache_clear()


def test_without_verl_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    debug._verl.cache_clear()
    for name in [n for n in sys.modules if n.partition(".")[0] == "verl"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "verl", None)
    with pytest.raises(ImportError) as error:
        debug_metrics.fn(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    assert "pip install torch==2.13.0 numpy packaging ray tensordict omegaconf transformers" in str(error.value)
    assert "pip install --no-deps verl==0.9.1" in str(error.value)


def test_importing_the_module_imports_no_framework() -> None:
    program = (
        "import sys, numerics.integrations.verl; print({'verl', 'tensordict', 'hypothesis', 'ray'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
