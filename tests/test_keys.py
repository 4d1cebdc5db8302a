"""The key tables name fields that exist, and their relations hold on worked examples."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import numerics
from numerics.cli import main
from numerics.integrations.keys import FRAMEWORKS, RELATIONS, framework, keys_of, known_fields, to_keys
from numerics.integrations.keys.page import page
from numerics.integrations.keys.table import EXACT, Framework, key
from numerics.integrations.verl import KEYS
from numerics.reference.correction import LEVELS, Rule

Q = torch.tensor([[-1.0, -2.0, -0.5], [-3.0, -1.0, -1.0]])
P = torch.tensor([[-1.375, -1.5, -0.5], [-2.5, -1.0, 9.0]])
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]])
FAR = (torch.tensor([[-30.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]), torch.tensor([[-0.5, -1.5, -1.0], [-1.0, -2.0, -1.0]]))

TRUNCATE = {"rule": "truncate", "level": "token", "upper": 1.5}
TRUNCATE_ROWS = {"rule": "truncate", "level": "sequence", "upper": 1.5}
TRUNCATE_GEOMETRIC = {"rule": "truncate", "level": "sequence_geometric", "upper": 1.2}
ZERO = {"rule": "zero", "level": "token", "lower": 0.9, "upper": 1.5}
ZERO_ROWS = {"rule": "zero", "level": "sequence", "lower": 0.0, "upper": 1.5}
ZERO_GEOMETRIC = {"rule": "zero", "level": "sequence_geometric", "lower": 0.5, "upper": 1.2}
REJECT = {"rule": "reject", "level": "token", "statistic": "k3", "threshold": 0.1}
REJECT_ROWS = {"rule": "reject", "level": "row_mean", "statistic": "k2", "threshold": 0.06}
VETO = {"rule": "veto", "level": "row_min", "threshold": 0.9}


class Batch:
    """A padded batch, with the reductions that frameworks write, in float64."""

    def __init__(self, q: torch.Tensor, p: torch.Tensor, mask: torch.Tensor) -> None:
        self.q, self.p, self.m = q.double(), p.double(), mask.double()
        self.d = torch.where(mask == 1, self.p - self.q, 0.0)
        self.w = self.d.exp()

    def token(self, x: torch.Tensor) -> float:
        return float((x * self.m).sum() / self.m.sum())

    def row(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.m).sum(1) / self.m.sum(1)

    def rows(self, x: torch.Tensor) -> float:
        return float(self.row(x).mean())

    @property
    def seq(self) -> torch.Tensor:
        return self.d.sum(1).exp()

    @property
    def geo(self) -> torch.Tensor:
        return self.row(self.d).exp()


Formula = Callable[[Batch], float]


def _share(x: torch.Tensor) -> float:
    return float(x.double().mean())


def _spread(b: Batch, rows: torch.Tensor) -> torch.Tensor:
    return rows.unsqueeze(1).expand_as(b.d).double()


def _k3(d: torch.Tensor) -> torch.Tensor:
    return d.exp() - d - 1


def _jsd(b: Batch) -> float:
    m = ((b.p.exp() + b.q.exp()) / 2).log()
    return b.token((_k3(b.p - m) + _k3(b.q - m)) / 2)


def _ess(x: torch.Tensor, b: Batch) -> float:
    return 1 / b.token((x / b.token(x)) ** 2)


def _ours(q: torch.Tensor, p: torch.Tensor, rule: dict[str, Any] | None) -> tuple[Any, ...]:
    figures = (numerics.mismatch(q, p, MASK), numerics.divergence(q, p, MASK))
    return figures if rule is None else (*figures, numerics.correction(q, p, MASK, **rule))


#: (framework, key, our rule, their formula): the figure that `to_keys` gives is theirs
EQUAL: list[tuple[str, str, dict[str, Any] | None, Formula]] = [
    ("verl", "rollout_corr/kl", None, lambda b: b.token(-b.d)),
    ("verl", "rollout_corr/ppl_ratio", None, lambda b: float(b.row(-b.d).exp().mean())),
    ("verl", "rollout_corr/rollout_is_mean", TRUNCATE, lambda b: b.token(b.w.clamp(max=1.5))),
    ("verl", "rollout_corr/rollout_is_mean", ZERO, lambda b: b.token(b.w * ((b.w >= 0.9) & (b.w <= 1.5)))),
    ("verl", "rollout_corr/rollout_is_ratio_fraction_low", ZERO, lambda b: b.token((b.w < 0.9).double())),
    ("verl", "rollout_corr/rollout_is_ratio_fraction_high", TRUNCATE_ROWS, lambda b: _share(b.seq > 1.5)),
    ("verl", "rollout_corr/rollout_is_batch_norm_factor", TRUNCATE_ROWS, lambda b: float(b.seq.clamp(max=1.5).mean())),
    ("verl", "rollout_corr/rollout_is_oob_ratio", ZERO, lambda b: b.token(((b.w < 0.9) | (b.w > 1.5)).double())),
    ("verl", "rollout_corr/rollout_is_oob_ratio", ZERO_ROWS, lambda b: b.token(_spread(b, b.seq > 1.5))),
    ("verl", "rollout_corr/rollout_rs_masked_fraction", REJECT, lambda b: b.token((_k3(b.d) > 0.1).double())),
    ("verl", "rollout_corr/rollout_rs_seq_masked_fraction", REJECT_ROWS, lambda b: _share(b.row(b.d**2 / 2) > 0.06)),
    ("trl", "sampling/importance_sampling_ratio/mean", TRUNCATE, lambda b: b.token(b.w.clamp(max=1.5))),
    ("trl", "sampling/importance_sampling_ratio/mean", ZERO_ROWS, lambda b: float((b.seq * (b.seq <= 1.5)).mean())),
    ("trl", "sampling/importance_sampling_ratio/min", ZERO_ROWS, lambda b: float((b.seq * (b.seq <= 1.5)).min())),
    ("trl", "sampling/importance_sampling_ratio/max", TRUNCATE, lambda b: float(b.w[b.m == 1].clamp(max=1.5).max())),
    ("nemo_rl", "gen_kl_error", None, lambda b: b.token(_k3(b.d))),
    ("nemo_rl", "mean_seq_mult_prob_error", None, lambda b: b.rows(b.d.abs().exp())),
    ("nemo_rl", "is_oob_ratio", ZERO, lambda b: b.token(((b.w < 0.9) | (b.w > 1.5)).double())),
    ("openrlhf", "vllm_kl", None, lambda b: b.token(-b.d)),
    ("slime", "mis_training_ppl", None, lambda b: float(b.row(-b.p).exp().mean())),
    ("slime", "mis_rs_catastrophic_seq_fraction", VETO, lambda b: _share((b.w < 0.9).any(1))),
    ("areal", "logp_diff/avg", None, lambda b: b.token(-b.d)),
    ("areal", "rs_filtered_fraction", ZERO_GEOMETRIC, lambda b: b.token(_spread(b, b.geo > 1.2))),
    ("prime_rl", "mismatch_kl/all/mean", None, lambda b: b.token(_k3(b.d))),
    ("skyrl", "policy/rollout_train_logprobs_abs_diff_std", None, lambda b: float(b.d[b.m == 1].abs().std())),
    ("skyrl", "token_mask_ratio", ZERO, lambda b: b.token(((b.w < 0.9) | (b.w > 1.5)).double())),
    ("skyrl", "tis_seq_clip_high_ratio", TRUNCATE_ROWS, lambda b: _share(b.seq > 1.5)),
    ("skyrl", "outlier_seq_under_low_ratio", VETO, lambda b: _share(((b.w < 0.9) & (b.m == 1)).any(1))),
    ("skyrl", "geo_sequence_mask_masked_ratio", ZERO_GEOMETRIC, lambda b: _share((b.geo < 0.5) | (b.geo > 1.2))),
    ("roll", "actor/train_infer_ratio_sequence_mean", None, lambda b: float(b.seq.mean())),
    ("roll", "actor/train_infer_ratio_geometric_mean", None, lambda b: float(b.geo.mean())),
    ("roll", "actor/train_infer_final_mask_mean", ZERO_GEOMETRIC, lambda b: b.token(_spread(b, b.geo <= 1.2))),
    ("open_instruct", "val/rho_drop_frac", ZERO_GEOMETRIC, lambda b: b.token(_spread(b, b.geo > 1.2))),
    ("tinker_cookbook", "optim/kl_sample_train_v2", None, lambda b: b.token(b.d**2 / 2)),
    ("tinker_cookbook", "optim/entropy", None, lambda b: b.token(-b.q)),
    ("ms_swift", "rollout_correction/chi2_seq", None, lambda b: float((b.geo**2).mean()) - 1),
    ("ms_swift", "rollout_correction/clipped_frac", TRUNCATE_GEOMETRIC, lambda b: _share(b.geo > 1.2)),
    ("torchtitan_rl", "bit_wise/logprob_diff/mean", None, lambda b: b.token(b.d)),
    ("torchtitan_rl", "bit_wise/ratio_tokens_different/mean", None, lambda b: b.token((b.d.abs() > 1e-6).double())),
    ("rllm", "offpolicy/log_ppl_diff", None, lambda b: float(b.row(b.q - b.p).mean())),
    ("tunix", "sampler_is/frac_clipped_at_threshold", TRUNCATE, lambda b: b.token((b.w > 1.5).double())),
    ("unsloth", "sampling/sampling_logp_difference/max", None, lambda b: float((b.d.abs() * b.m).max())),
]

#: (framework, key, our rule, whether d is large, their formula): theirs is not our figure
UNEQUAL: list[tuple[str, str, dict[str, Any] | None, bool, Formula]] = [
    ("trl", "sampling/importance_sampling_ratio/mean", None, False, lambda b: b.token(b.w.clamp(max=1.5))),
    ("verl", "rollout_corr/chi2_token", None, True, lambda b: b.token((2 * b.d.clamp(-20, 20)).exp()) - 1),
    ("verl", "rollout_corr/chi2_seq", None, True, lambda b: float((2 * b.d.sum(1).clamp(-20, 20)).exp().mean()) - 1),
    ("verl", "rollout_corr/rollout_is_seq_mean", TRUNCATE, False, lambda b: b.rows(b.w.clamp(max=1.5))),
    ("nemo_rl", "policy_kl_error", None, False, lambda b: b.token(_k3(-b.d))),
    ("nemo_rl", "js_divergence_error", None, False, _jsd),
    ("slime", "mis_kl", None, False, lambda b: b.rows(-b.d)),
    ("slime", "tis", None, False, lambda b: b.rows(b.w)),
    ("slime", "train_rollout_logprob_abs_diff", None, False, lambda b: b.rows(b.d.abs())),
    ("slime", "mis_chi2_token", None, False, lambda b: b.rows(b.w**2) - 1),
    ("miles", "train_rollout_kl", None, True, lambda b: b.rows(_k3(b.d.clamp(-20, 20)).clamp(max=10))),
    ("areal", "behave_approx_kl/avg", None, False, lambda b: float(b.d[(b.m == 1) & (b.w >= 0.9)].mean())),
    ("skyrl", "is_ratio_std", None, False, lambda b: float((b.w * b.m).std())),
    ("skyrl", "is_ratio_min", None, False, lambda b: float((b.w * b.m).min())),
    ("skyrl", "is_ratio_mean", None, True, lambda b: b.token(b.d.clamp(-20, 20).exp())),
    ("roll", "actor/train_infer_diff_token_mean", None, False, lambda b: b.rows(b.p.exp() - b.q.exp())),
    ("roll", "actor/train_infer_ratio_token_mean", None, False, lambda b: b.rows(b.w)),
    ("roll", "actor/train_infer_{level}_ratio_mask_mean", ZERO, False, lambda b: float((b.w >= 0.9).sum()) / 5),
    ("open_instruct", "debug/vllm_local_reverse_kl", None, False, lambda b: b.token(b.q.exp() * -b.d)),
    ("open_instruct", "debug/vllm_vs_local_logprob_diff_mean", None, False, lambda b: float(b.row(b.d.abs())[-1])),
    ("ms_swift", "rollout_correction/k3_kl", None, True, lambda b: b.token(_k3(b.d.clamp(-20, 20)).clamp(max=10))),
    ("ms_swift", "rollout_correction/ess", ZERO, False, lambda b: _ess((b.w * (b.w <= 1.5)).clamp(1 / 1.5, 1.5), b)),
    ("torchtitan_rl", "loss/ratio_mean", None, True, lambda b: b.token(b.d.clamp(-10, 10).exp())),
    ("rllm", "offpolicy/ratio/max", None, True, lambda b: float(b.d.clamp(-20, 20).exp().max())),
    ("unsloth", "sampling/sampling_logp_difference/mean", None, False, lambda b: float((b.d.abs() * b.m).mean())),
]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_key_names_a_field_a_relation_and_its_source(name: str) -> None:
    found = framework(name)
    assert found.name == name
    assert found.keys
    assert found.commit in found.source
    rules = {f"{rule}/{level}" for rule, levels in LEVELS.items() for level in levels}
    for one in found.keys:
        assert one.field in known_fields() | {""}, one.name
        assert one.carries in known_fields() | {""}, one.name
        assert {field for field, _ in one.needs} <= known_fields()
        assert set(one.rules) <= rules, one.name
        assert one.relation in RELATIONS
        assert one.definition
        assert one.where


def test_the_committed_page_is_the_generated_one() -> None:
    assert (Path(__file__).parent.parent / "docs" / "keys.md").read_text() == page()


def test_verl_has_the_keys_of_its_drop_in() -> None:
    table = {k.name: k.field for k in framework("verl").keys}
    for field, name in KEYS.items():
        if name in table:
            assert table[name] == field
    assert len({*KEYS.values()} & {*table}) >= 8


@pytest.mark.parametrize(("name", "found", "rule", "formula"), EQUAL, ids=lambda x: x if isinstance(x, str) else "")
def test_their_formula_gives_the_figure_under_their_key(
    name: str, found: str, rule: dict[str, Any] | None, formula: Formula
) -> None:
    given = to_keys(name, _ours(Q, P, rule), rule=rule)
    assert given[found] == pytest.approx(formula(Batch(Q, P, MASK)), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "found", "rule", "far", "formula"), UNEQUAL, ids=lambda x: x if isinstance(x, str) else ""
)
def test_what_is_another_quantity_differs_on_an_example(
    name: str, found: str, rule: dict[str, Any] | None, far: bool, formula: Formula
) -> None:
    """The flag is deserved: the framework's formula, worked out here, is not our figure, and we do not give it."""
    q, p = FAR if far else (Q, P)
    ours = _ours(q, p, rule)
    one = {k.name: k for k in framework(name).keys}[found]
    figures = {k: v for part in ours[:2] for k, v in part.as_dict().items()}
    figures |= {f"correction.{k}": v for part in ours[2:] for k, v in part.diagnostics.as_dict().items()}
    assert formula(Batch(q, p, MASK)) != pytest.approx(figures[one.field], rel=1e-3)
    assert found not in to_keys(name, ours, rule=rule)
    assert one.relation not in EXACT


def test_worked_by_hand() -> None:
    """d = (-0.375, 0.5, 0) and (0.5, 0): mean -d = -0.625/5, mean d^2/2 = 0.640625/10; of rows 1/24 and 1/4."""
    ours = _ours(Q, P, None)
    assert to_keys("openrlhf", ours)["vllm_kl"] == -0.125
    assert to_keys("torchtitan_rl", ours)["bit_wise/logprob_diff/mean"] == 0.125
    assert to_keys("tinker_cookbook", ours)["optim/kl_sample_train_v2"] == 0.0640625
    assert Batch(Q, P, MASK).rows(Batch(Q, P, MASK).d) == pytest.approx((1 / 24 + 1 / 4) / 2)
    assert "mis_kl" not in to_keys("slime", ours)  # -0.1458 there
    assert to_keys("skyrl", _ours(Q, P, ZERO), rule=ZERO)["token_mask_ratio"] == 1 - 2 / 5  # kept: the two d = 0


def test_a_different_quantity_is_left_out_or_an_error() -> None:
    ours = _ours(Q, P, None)
    assert not [name for name in to_keys("trl", ours) if "ratio" in name]
    with pytest.raises(
        ValueError, match=r"TRL means another quantity by: sampling/importance_sampling_ratio/mean \(post_"
    ):
        to_keys("trl", ours, different="error")
    with pytest.raises(ValueError, match="different is 'include'"):
        to_keys("trl", ours, different="include")
    assert to_keys("openrlhf", ours, different="error") == to_keys("openrlhf", ours)


def test_the_figures_of_a_correction_need_its_rule() -> None:
    tis = numerics.correction(Q, P, MASK, **TRUNCATE)
    assert to_keys("skyrl", tis) == {}
    with pytest.raises(
        ValueError, match=r"tis_token_clip_high_ratio \(only for rule truncate/token, and this is not said"
    ):
        to_keys("skyrl", tis, different="error")
    assert to_keys("skyrl", tis, rule=TRUNCATE) == {"tis_token_clip_high_ratio": 2 / 5}
    assert to_keys("skyrl", tis.diagnostics, rule=Rule(**TRUNCATE)) == {"tis_token_clip_high_ratio": 2 / 5}
    rejected = numerics.correction(Q, P, MASK, **REJECT)
    assert to_keys("skyrl", rejected, rule=REJECT) == {}  # a threshold on k3: none of SkyRL's
    assert "rollout_corr/rollout_is_ratio_fraction_high" not in to_keys("verl", rejected, rule=REJECT)
    with pytest.raises(ValueError, match="level of rule 'zero'"):
        to_keys("verl", tis, rule={**ZERO, "level": "row_min"})
    with pytest.raises(TypeError, match="rule must be a Rule or a mapping of its fields, got str"):
        to_keys("verl", tis, rule="truncate/token")


def test_a_key_with_a_fixed_epsilon() -> None:
    name = "bit_wise/ratio_tokens_different/mean"
    assert to_keys("torchtitan_rl", numerics.divergence(Q, P, MASK))[name] == 3 / 5
    wide = numerics.divergence(Q, P, MASK, epsilon=0.4)
    assert name not in to_keys("torchtitan_rl", wide)
    with pytest.raises(ValueError, match=r"different/mean \(only for epsilon = 1e-06, and this is 0.4\)"):
        to_keys("torchtitan_rl", wide, different="error")


def test_metrics_of_a_state() -> None:
    state = numerics.MetricState(corrections={"tis": TRUNCATE}).update(Q, P, MASK)
    figures = state.compute()
    assert to_keys("verl", figures, rule=TRUNCATE) == to_keys("verl", _ours(Q, P, TRUNCATE), rule=TRUNCATE)
    two = numerics.MetricState(corrections={"tis": TRUNCATE, "pop": ZERO}).update(Q, P, MASK).compute()
    with pytest.raises(ValueError, match=r"several corrections \(pop, tis\)"):
        to_keys("verl", two, rule=TRUNCATE)


def test_parts_must_be_of_the_same_tokens() -> None:
    with pytest.raises(ValueError, match=r"valid_count is 5 in one part of metrics and 3 in another|is .* in one part"):
        to_keys("verl", (numerics.mismatch(Q, P, MASK), numerics.divergence(Q[:1], P[:1])))
    pair = [numerics.correction(Q, P, MASK, **rule) for rule in (TRUNCATE, ZERO)]
    with pytest.raises(ValueError, match=r"and of one correction"):
        to_keys("verl", pair, rule=TRUNCATE)
    empty = (numerics.mismatch(Q, P, MASK * 0), numerics.divergence(Q, P, MASK * 0))
    assert math.isnan(to_keys("verl", (*empty, *empty))["rollout_corr/kl"])  # NaN agrees with NaN


def test_mappings_and_their_errors() -> None:
    assert to_keys("openrlhf", {"k1": 0.25}) == {"vllm_kl": 0.25}
    assert math.isnan(to_keys("openrlhf", numerics.divergence(Q, P, MASK * 0))["vllm_kl"])
    with pytest.raises(KeyError, match="no field 'k_1'; did you mean k1"):
        to_keys("openrlhf", {"k_1": 0.25})
    with pytest.raises(ValueError, match=r"framework is 'nemo-rl'; did you mean nemo_rl\?"):
        to_keys("nemo-rl", {})
    for wrong in (3, "k1", framework("verl")):
        with pytest.raises(TypeError, match="metrics must be a result of ours"):
            to_keys("verl", wrong)


def test_tables_refuse_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="relation is 'equal'"):
        key("a", "k1", "equal", "mean")
    with pytest.raises(ValueError, match="go together"):
        key("a", "", "same", "mean")
    with pytest.raises(ValueError, match="stands for several names"):
        key("a/{env}", "k1", "same", "mean")
    with pytest.raises(ValueError, match="names its rules"):
        key("a", "correction.kept_fraction", "same", "mean")
    with pytest.raises(ValueError, match="names its rules"):
        key("a", "k1", "same", "mean", rules=("zero/token",))
    with pytest.raises(ValueError, match="keys listed twice: a"):
        Framework(
            name="x",
            title="X",
            repository="x/x",
            commit="0",
            date="",
            logged="",
            keys=(key("a", "k1", "same", "m"), key("a", "k2", "same", "m")),
        )


def test_by_field() -> None:
    assert {(f.name, k.name) for f, k in keys_of("k2")} == {("tinker_cookbook", "optim/kl_sample_train_v2")}
    assert len(keys_of("k1")) >= 8
    assert "trl" in {f.name for f, _ in keys_of("ratio_max")} & {
        f.name for f, _ in keys_of("correction.ratio_truncated_max")
    }


def test_command() -> None:
    runner = CliRunner()
    listed = runner.invoke(main, ["keys"])
    assert listed.exit_code == 0
    assert all(name in listed.output for name in FRAMEWORKS)
    one = json.loads(runner.invoke(main, ["keys", "openrlhf", "--json"]).output)
    assert [record["name"] for record in one] == ["vllm_kl", "ppo_kl"]
    by_field = json.loads(runner.invoke(main, ["keys", "--field", "k2", "--json"]).output)
    assert [record["framework"] for record in by_field] == ["tinker_cookbook"]
    assert "behave_approx_kl" in runner.invoke(main, ["keys", "areal"]).output
    wrong = runner.invoke(main, ["keys", "vrl"])
    assert wrong.exit_code == 2
    assert "did you mean verl" in wrong.output
    assert runner.invoke(main, ["keys", "--field", "kk"]).exit_code == 2
