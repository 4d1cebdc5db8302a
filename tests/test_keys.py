"""The key tables name fields that exist, and their relations hold on worked examples."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import numerics
from numerics.cli import main
from numerics.integrations.keys import FRAMEWORKS, RELATIONS, framework, keys_of, known_fields, to_keys
from numerics.integrations.keys.page import page
from numerics.integrations.keys.table import Framework, key
from numerics.integrations.verl import KEYS

Q = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.0, -1.0]])
P = torch.tensor([[-1.375, -1.5, -0.5], [-2.5, -1.0, 9.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
VALID = MASK.bool()
D = (P.double() - Q.double())[VALID]
OURS = (
    numerics.mismatch(Q, P, MASK),
    numerics.divergence(Q, P, MASK),
    numerics.correction(Q, P, MASK, rule="truncate", level="token", upper=1.5).diagnostics,
)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_key_names_a_field_and_a_relation(name: str) -> None:
    found = framework(name)
    assert found.name == name
    assert found.keys
    for one in found.keys:
        assert one.field in known_fields() | {""}, one.name
        assert one.relation in RELATIONS
        assert one.definition


def test_the_committed_page_is_the_generated_one() -> None:
    assert (Path(__file__).parent.parent / "docs" / "keys.md").read_text() == page()


def test_verl_has_the_keys_of_its_drop_in() -> None:
    table = {k.name: k.field for k in framework("verl").keys}
    for field, name in KEYS.items():
        if name in table:
            assert table[name] == field
    assert len({*KEYS.values()} & {*table}) >= 8


def test_same_and_negated_keys_carry_our_figures() -> None:
    kl = float((-D).mean())
    assert to_keys("verl", OURS)["rollout_corr/kl"] == pytest.approx(kl, rel=2**-50)
    assert to_keys("areal", OURS)["behave_approx_kl"] == pytest.approx(-kl, rel=2**-50)
    assert to_keys("torchtitan_rl", OURS)["bit_wise/logprob_diff/mean"] == pytest.approx(-kl, rel=2**-50)
    assert to_keys("tinker_cookbook", OURS) == {
        "optim/kl_sample_train_v1": OURS[1].k1,
        "optim/kl_sample_train_v2": OURS[1].k2,
        "optim/entropy": OURS[1].sampling_entropy,
    }
    swift = to_keys("ms_swift", OURS)
    assert swift["rollout_correction/chi2_seq"] == OURS[1].chi2_seq_geometric
    assert "rollout_corr/chi2_seq" not in to_keys("verl", OURS)  # clamped there


def test_what_is_another_quantity_differs_on_an_example() -> None:
    """The flag is deserved: the framework's formula, worked out here, is not our figure."""
    ours = OURS[1]
    w = D.exp()
    post_clip = float(w.clamp(max=1.2).mean())  # TRL sampling/importance_sampling_ratio/mean
    assert post_clip < ours.ratio_mean
    policy_kl = float((torch.expm1(-D) + D).mean())  # NeMo-RL policy_kl_error
    assert policy_kl != pytest.approx(ours.kl_trainer_rollout, rel=1e-3)
    again = float((Q.double()[VALID].exp() * -D).mean())  # open-instruct vllm_local_reverse_kl
    assert again != pytest.approx(ours.k1, rel=1e-3)
    m = torch.log((P.double()[VALID].exp() + Q.double()[VALID].exp()) / 2)  # NeMo-RL js_divergence_error
    halves = [torch.expm1(x - m) - (x - m) for x in (P.double()[VALID], Q.double()[VALID])]
    assert float((halves[0] + halves[1]).mean() / 2) != pytest.approx(ours.jsd, rel=1e-3)
    rows = [D[:3].abs().mean(), D[3:].abs().mean()]  # slime train_rollout_logprob_abs_diff
    assert float(sum(rows) / 2) != pytest.approx(OURS[0].logprobs_diff_mean, rel=1e-3)
    diluted = float(torch.where(VALID, (P - Q).double().exp(), 0.0).mean())  # SkyRL is_ratio_mean
    assert diluted != pytest.approx(ours.ratio_mean, rel=1e-3)


def test_a_different_quantity_is_left_out_or_an_error() -> None:
    assert "sampling/importance_sampling_ratio/max" not in to_keys("trl", OURS)
    with pytest.raises(ValueError, match=r"TRL means another quantity by: sampling/importance_sampling_ratio/mean"):
        to_keys("trl", OURS, different="error")
    with pytest.raises(ValueError, match="different is 'include'"):
        to_keys("trl", OURS, different="include")


def test_mappings_and_their_errors() -> None:
    assert to_keys("openrlhf", {"k1": 0.25}) == {"vllm_kl": 0.25}
    assert math.isnan(to_keys("openrlhf", numerics.divergence(Q, P, MASK * 0))["vllm_kl"])
    with pytest.raises(KeyError, match="no field 'k_1'"):
        to_keys("openrlhf", {"k_1": 0.25})
    with pytest.raises(ValueError, match=r"framework is 'nemo-rl'; did you mean nemo_rl\?"):
        to_keys("nemo-rl", {})
    with pytest.raises(TypeError, match="metrics must be a result of ours"):
        to_keys("verl", 3)


def test_tables_refuse_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="relation is 'equal'"):
        key("a", "k1", "equal", "mean")
    with pytest.raises(ValueError, match="go together"):
        key("a", "", "same", "mean")
    with pytest.raises(ValueError, match="keys listed twice: a"):
        Framework(name="x", title="X", source="", keys=(key("a", "k1", "same", "m"), key("a", "k2", "same", "m")))


def test_by_field() -> None:
    assert {(f.name, k.name) for f, k in keys_of("k2")} == {("tinker_cookbook", "optim/kl_sample_train_v2")}
    assert len(keys_of("k1")) >= 8


def test_command() -> None:
    runner = CliRunner()
    listed = runner.invoke(main, ["keys"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in FRAMEWORKS)
    one = json.loads(runner.invoke(main, ["keys", "openrlhf", "--json"]).output)
    assert [record["name"] for record in one] == ["vllm_kl"]
    by_field = json.loads(runner.invoke(main, ["keys", "--field", "k2", "--json"]).output)
    assert [record["framework"] for record in by_field] == ["tinker_cookbook"]
    assert "behave_approx_kl" in runner.invoke(main, ["keys", "areal"]).output
    wrong = runner.invoke(main, ["keys", "vrl"])
    assert wrong.exit_code == 2
    assert "did you mean verl" in wrong.output
    assert runner.invoke(main, ["keys", "--field", "kk"]).exit_code == 2
