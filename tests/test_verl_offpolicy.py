"""verl's off-policy metrics, aggregator and installation, without verl: against a package of the same call sites."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import numerics
from numerics.integrations import verl
from numerics.integrations.verl import OFFPOLICY_KEYS, VERL_REDUCERS, MetricsAggregator, compute_offpolicy_metrics
from numerics.reference.aggregate import REDUCERS

Q = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.0, -1.0], [0.0, 0.0, 0.0]])
P = torch.tensor([[-1.25, -1.5, -0.5], [-2.5, -1.0, 9.0], [-4.0, -4.0, -4.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]])


def test_every_figure_is_that_of_divergence() -> None:
    ours = numerics.divergence(Q, P, MASK).as_dict()
    assert compute_offpolicy_metrics(P, Q, MASK) == {key: ours[field] for field, key in OFFPOLICY_KEYS.items()}


def test_a_row_without_a_token_is_no_row() -> None:
    """verl#7771: verl's perplexity counts the third row as 1."""
    assert compute_offpolicy_metrics(P, Q, MASK) == compute_offpolicy_metrics(P[:2], Q[:2], MASK[:2])


def test_without_a_rollout_the_trainers_perplexity_remains() -> None:
    got = compute_offpolicy_metrics(P, None, MASK)
    assert got == {k: compute_offpolicy_metrics(P, Q, MASK)[k] for k in ("training_ppl", "training_log_ppl")}


def test_all_masked_is_nan_and_an_overflow_keeps_its_logarithm() -> None:
    assert math.isnan(compute_offpolicy_metrics(P, Q, MASK * 0)["kl"])
    far = compute_offpolicy_metrics(torch.zeros(1, 2), torch.full((1, 2), -400.0), torch.ones(1, 2))
    assert far["chi2_token"] == math.inf
    assert far["log1p_chi2_token"] == 800.0


def test_declared_reducers_exist_and_the_count_is_summed() -> None:
    assert set(VERL_REDUCERS.values()) <= set(REDUCERS)
    assert VERL_REDUCERS["training/rollout_logprobs_mismatch_count"] == "sum"
    assert VERL_REDUCERS["training/rollout_probs_diff_max"] == "max"
    assert VERL_REDUCERS["rollout_corr/log_ppl_diff_min"] == "min"


def test_aggregator_takes_what_verls_takes() -> None:
    aggregator = MetricsAggregator()
    count, mean, high = (
        "training/rollout_logprobs_mismatch_count",
        "training/rollout_logprobs_diff_mean",
        "training/rollout_logprobs_diff_max",
    )
    first = {count: 3, mean: 0.5, high: math.nan, "timing_s/gen": 1.5, "training/global_step": 7, "flag": True}
    second = {count: 4, mean: 0.1, high: 0.5, "timing_s/gen": 2.0, "training/global_step": 8, "text": "x"}
    aggregator.add_step_metrics(first, sample_count=10)
    aggregator.add_step_metrics({**second, "counter": {"a": 1}}, sample_count=30)
    aggregator.add_step_metrics({"counter": {"a": 2, "b": 1}, "global_seqlen/max": torch.tensor([9.0])})
    got = aggregator.get_aggregated_metrics()
    assert got[count] == 7
    assert got[mean] == pytest.approx(0.2, rel=2**-52)
    assert math.isnan(got[high])  # verl's max keeps or loses the NaN by order
    assert (got["timing_s/gen"], got["training/global_step"], got["global_seqlen/max"]) == (3.5, 8.0, 9.0)
    assert got["counter"] == {"a": 3, "b": 1}
    assert "flag" not in got
    assert "text" not in got


def test_means_without_weights_weigh_alike_and_differences_are_of_aggregates() -> None:
    aggregator = MetricsAggregator()
    for low, high in ((1.0, 5.0), (2.0, 9.0)):
        aggregator.add_step_metrics(
            {"actor/pg_loss": low, "global_seqlen/min": low, "global_seqlen/max": high, "global_seqlen/mean": 0.0}
        )
    got = aggregator.get_aggregated_metrics()
    assert got["actor/pg_loss"] == 1.5
    assert MetricsAggregator().get_aggregated_metrics() == {}


def test_an_unknown_key_is_an_error_that_names_near_ones() -> None:
    with pytest.raises(KeyError, match="did you mean 'training/rollout_probs_diff_max'"):
        MetricsAggregator().add_step_metrics({"training/rollout_prob_diff_max": 1.0})
    asked = MetricsAggregator(unknown=lambda key: "max")
    asked.add_step_metrics({"mine": 1.0})
    asked.add_step_metrics({"mine": 3.0})
    assert asked.get_aggregated_metrics() == {"mine": 3.0}
    assert asked.undeclared == ["mine"]


_FAKE = {
    "__init__": "",
    "utils/__init__": "",
    "utils/debug/__init__": "from verl.utils.debug.metrics import calculate_debug_metrics\n",
    "utils/debug/metrics": "def calculate_debug_metrics(data):\n    return {'whose': 'verl'}\n",
    "trainer/__init__": "",
    "trainer/ppo/__init__": "",
    "trainer/ppo/rollout_corr_helper": "def compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask):\n"
    "    return {'whose': 'verl'}\n\n\ndef all_metrics(*sides):\n    return compute_offpolicy_metrics(*sides)\n",
    "trainer/ppo/v1/__init__": "",
    "trainer/ppo/v1/utils": "class MetricsAggregator:\n    def _get_aggregation_type(self, key):\n"
    "        return 'max' if 'max' in key else 'weighted_avg'\n",
    "trainer/ppo/v1/trainer_base": "from verl.trainer.ppo.v1.utils import MetricsAggregator\n"
    "from verl.utils.debug.metrics import calculate_debug_metrics\n",
}


@pytest.fixture
def fake_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package called verl with verl's call sites; its own objects say whose they are."""
    for name, text in _FAKE.items():
        path = tmp_path / "verl" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.9.1")
    yield
    verl.uninstall()
    for name in [n for n in sys.modules if n == "verl" or n.startswith("verl.")]:
        del sys.modules[name]


def module(name: str) -> Any:
    return importlib.import_module(f"verl.{name}")


def test_install_changes_every_call_site_and_uninstall_restores_them(fake_verl: None) -> None:
    trainer = module("trainer.ppo.v1.trainer_base")
    own = trainer.MetricsAggregator, trainer.calculate_debug_metrics
    places = verl.install()
    assert "verl.trainer.ppo.v1.trainer_base:calculate_debug_metrics" in places
    assert trainer.calculate_debug_metrics is verl.calculate_debug_metrics
    assert module("utils.debug").calculate_debug_metrics is verl.calculate_debug_metrics
    assert module("trainer.ppo.rollout_corr_helper").all_metrics(P, Q, MASK)["kl"] == numerics.divergence(Q, P, MASK).k1
    aggregator = trainer.MetricsAggregator()
    aggregator.add_step_metrics({"training/rollout_logprobs_mismatch_count": 2, "my_max": 3.0})
    aggregator.add_step_metrics({"training/rollout_logprobs_mismatch_count": 2, "my_max": 1.0})
    assert aggregator.get_aggregated_metrics() == {"training/rollout_logprobs_mismatch_count": 4, "my_max": 3.0}
    assert verl.install() == places  # twice is once
    assert verl.uninstall() == places
    assert (trainer.MetricsAggregator, trainer.calculate_debug_metrics) == own
    assert module("utils.debug.metrics").calculate_debug_metrics({})["whose"] == "verl"
    assert verl.installed() == verl.uninstall() == []


def test_one_part_alone(fake_verl: None) -> None:
    assert verl.install(parts=["offpolicy_metrics"]) == [
        "verl.trainer.ppo.rollout_corr_helper:compute_offpolicy_metrics"
    ]
    assert module("utils.debug.metrics").calculate_debug_metrics({})["whose"] == "verl"
    with pytest.raises(ValueError, match="unknown part 'actor'; the parts are debug_metrics, offpolicy_metrics"):
        verl.install(parts=["actor"])


def test_an_unread_version_is_refused(fake_verl: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.10.0")
    with pytest.raises(RuntimeError, match=r"verl is 0\.10\.0, whose call sites were not read \(known: 0\.9\.1\)"):
        verl.install()
    assert verl.install(version="0.10.0", parts=["debug_metrics"])


def test_a_home_that_lacks_the_name_is_refused(fake_verl: None) -> None:
    del module("trainer.ppo.rollout_corr_helper").compute_offpolicy_metrics
    with pytest.raises(RuntimeError, match="has no compute_offpolicy_metrics: nothing was changed"):
        verl.install()
    assert verl.installed() == []


def test_a_home_that_cannot_be_imported_is_named(fake_verl: None, tmp_path: Path) -> None:
    (tmp_path / "verl" / "trainer" / "ppo" / "v1" / "utils.py").write_text("import transfer_queue_of_verl\n")
    with pytest.raises(
        RuntimeError, match=r"leave 'aggregator' out with parts=\['debug_metrics', 'offpolicy_metrics'\]"
    ):
        verl.install()
    assert verl.installed() == []


def test_without_verl() -> None:
    with pytest.raises(ImportError, match="verl is not installed"):
        verl.install()
    with pytest.raises(ImportError, match="cannot import verl"):
        verl.offpolicy_metrics.fn(Q, P, MASK)
