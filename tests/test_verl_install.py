"""Installing the drop-ins into a package that has verl's call sites: parts, versions, sources, waiting, and back."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
import torch

import numerics
from numerics.integrations import verl
from numerics.integrations.verl.sites import SITES, fingerprint

Q, P, MASK = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -2.0]]), torch.tensor([[1, 1]])

METRICS_PLACES = [
    "verl.trainer.ppo.rollout_corr_helper:compute_offpolicy_metrics",
    "verl.trainer.ppo.v1.trainer_base:MetricsAggregator",
    "verl.trainer.ppo.v1.trainer_base:calculate_debug_metrics",
    "verl.trainer.ppo.v1.trainer_base:reduce_metrics",
    "verl.trainer.ppo.v1.utils:MetricsAggregator",
    "verl.utils.debug.metrics:calculate_debug_metrics",
    "verl.utils.debug:calculate_debug_metrics",
    "verl.utils.metric.utils:reduce_metrics",
    "verl.utils.metric:reduce_metrics",
]

#: modules with verl's names and parameters; what they return says whose they are
FAKE = {
    "": "",
    "utils": "",
    "utils.debug": "from verl.utils.debug.metrics import calculate_debug_metrics",
    "utils.debug.metrics": """
        def calculate_debug_metrics(data):
            return {"whose": "verl"}
        """,
    "utils.metric": "from verl.utils.metric.utils import reduce_metrics",
    "utils.metric.utils": """
        def reduce_metrics(metrics):
            return "verl"
        """,
    "utils.experimental": "",
    "utils.experimental.torch_functional": """
        class FusedLinearForPPO:
            def forward(self, hidden_states, vocab_weights, input_ids, temperature=1.0):
                return "verl"
        """,
    "utils.kernel": "",
    "utils.kernel.linear_cross_entropy": """
        class LinearCrossEntropy:
            @staticmethod
            def forward(ctx, hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None):
                return "verl"

        def apply(*arguments):
            return LinearCrossEntropy.forward(None, *arguments)

        linear_cross_entropy = apply
        """,
    "trainer": "",
    "trainer.ppo": "",
    "trainer.ppo.rollout_corr_helper": """
        def compute_offpolicy_metrics(old_log_prob, rollout_log_prob, response_mask):
            return {"whose": "verl"}

        def compute_rollout_correction_weights(
            log_ratio, response_mask, rollout_is="token", rollout_is_threshold=2.0, rollout_is_batch_normalize=False
        ):
            return "verl"

        def compute_rollout_rejection_mask(log_ratio, response_mask, rollout_rs="token_k1", rollout_rs_threshold=None):
            return "verl"

        def compute_rollout_correction_and_rejection_mask(
            old_log_prob, rollout_log_prob, response_mask, rollout_is=None, rollout_is_threshold=2.0,
            rollout_is_batch_normalize=False, rollout_rs=None, rollout_rs_threshold=None,
        ):
            return "verl"

        def all_metrics(*sides):
            return compute_offpolicy_metrics(*sides)
        """,
    "trainer.ppo.ray_trainer": """
        class RayPPOTrainer:
            def _compute_old_log_prob(self, batch):
                return "verl"
        """,
    "trainer.ppo.v1": "",
    "trainer.ppo.v1.utils": """
        class MetricsAggregator:
            def _get_aggregation_type(self, key):
                return "max" if "max" in key else "time_sum" if "time" in key else "weighted_avg"
        """,
    "trainer.ppo.v1.trainer_base": """
        from verl.trainer.ppo.v1.utils import MetricsAggregator
        from verl.utils.debug.metrics import calculate_debug_metrics
        from verl.utils.metric import reduce_metrics

        class PPOTrainer:
            def _compute_old_log_prob(self, batch, metrics):
                return "verl"
        """,
    "workers": "",
    "workers.engine": "",
    "workers.engine.fsdp": "",
    "workers.engine.fsdp.transformer_impl": """
        class FSDPEngineWithLMHead:
            def forward_step(self, micro_batch, loss_function, forward_only):
                return "verl"

            def prepare_model_outputs(self, output, output_args, micro_batch, logits_processor_func):
                return {}
        """,
    "workers.engine.megatron": "",
    "workers.engine.megatron.transformer_impl": """
        class MegatronEngineWithLMHead:
            def _lm_head_logits_processor(
                self, logits, label, temperature, calculate_sum_pi_squared, calculate_entropy, distillation_use_topk,
                distillation_only, logits_processor_func, batch, data_format,
            ):
                return {}
        """,
    "models": "",
    "models.mcore": "",
    "models.mcore.util": """
        def postprocess_thd_engine(
            output, packed_seq_params, input_ids, batch_size, post_process=True, local_cp_size=None, cp_layout=None
        ):
            return "verl"
        """,
    "models.mcore.model_forward_fused": """
        from verl.models.mcore.util import postprocess_thd_engine
        from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

        def fused_forward_model_engine(vision_model=False):
            return lambda: postprocess_thd_engine
        """,
}


def write(root: Path) -> None:
    for name, text in FAKE.items():
        package = any(other.startswith(f"{name}.") for other in FAKE) or not name
        parts = [x for x in name.split(".") if x]
        path = (
            root.joinpath("verl", *parts, "__init__.py")
            if package
            else root.joinpath("verl", *parts[:-1], f"{parts[-1]}.py")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def forget() -> None:
    for name in [n for n in sys.modules if n == "verl" or n.startswith("verl.")]:
        del sys.modules[name]


@pytest.fixture
def fake_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package called verl, whose sources are the ones that were read; nothing of it is loaded yet."""
    write(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.9.1")
    known = {
        key: dataclasses.replace(site, fingerprints={"0.9.1": fingerprint(site._text(site.import_home()))})
        for key, site in SITES.items()
    }
    monkeypatch.setattr(importlib.import_module("numerics.integrations.verl.install"), "SITES", known)
    forget()
    yield
    verl.uninstall()
    forget()


def module(name: str) -> Any:
    return importlib.import_module(f"verl.{name}")


def everything() -> dict[str, dict[str, Any]]:
    """All names of all modules and classes of the fake that are loaded."""
    found = {}
    for name, loaded in list(sys.modules.items()):
        if name == "verl" or name.startswith("verl."):
            for owner in [loaded, *(x for x in vars(loaded).values() if isinstance(x, type))]:
                found[f"{name}/{getattr(owner, '__name__', '')}"] = dict(vars(owner))
    return found


# --- in and out


def test_install_changes_every_call_site_and_uninstall_restores_them(fake_verl: None) -> None:
    trainer = module("trainer.ppo.v1.trainer_base")
    module("utils.debug")
    module("trainer.ppo.rollout_corr_helper")
    before = everything()
    assert verl.install() == METRICS_PLACES
    assert (
        trainer.calculate_debug_metrics({"rollout_log_probs": Q, "old_log_probs": P})[
            "training/rollout_logprobs_mismatch_count"
        ]
        == 1
    )
    assert module("utils.debug").calculate_debug_metrics is trainer.calculate_debug_metrics
    assert module("trainer.ppo.rollout_corr_helper").all_metrics(P, Q, MASK)["kl"] == numerics.divergence(Q, P, MASK).k1
    assert verl.install() == METRICS_PLACES == verl.installed()  # twice is once
    assert verl.uninstall() == METRICS_PLACES
    after = everything()
    assert {name: after[name] for name in before} == before
    assert verl.installed() == verl.uninstall() == verl.waiting() == []


def test_installed_again_after_it_was_out(fake_verl: None) -> None:
    places = verl.install()
    verl.uninstall()
    assert verl.install() == places != []


def test_every_part_goes_in_and_comes_out(fake_verl: None) -> None:
    for site in SITES.values():
        site.import_home()
    before = everything()
    places = verl.install(parts=list(verl.PARTS))
    assert {site.place for site in SITES.values()} <= set(places)
    assert verl.waiting() == []
    # the unpacking is replaced where the fused forward uses it, and nowhere else
    assert "verl.models.mcore.util:postprocess_thd_engine" not in places
    assert "verl.models.mcore.model_forward_fused:linear_cross_entropy" in places
    assert verl.install(parts=list(verl.PARTS)) == places
    assert verl.uninstall() == places
    assert everything() == before


def test_a_user_who_imported_ours_keeps_it(fake_verl: None) -> None:
    mine = module("utils.debug")
    mine.calculate_debug_metrics = verl.calculate_debug_metrics
    verl.install(parts=["debug_metrics"])
    verl.uninstall()
    assert mine.calculate_debug_metrics is verl.calculate_debug_metrics


def test_modules_that_come_later_get_it_from_its_home_and_give_it_back(fake_verl: None) -> None:
    verl.install(parts=["debug_metrics"])
    late = module("trainer.ppo.v1.trainer_base").calculate_debug_metrics
    assert late.verls_own({}) == {"whose": "verl"}
    assert "verl.trainer.ppo.v1.trainer_base:calculate_debug_metrics" in verl.uninstall()
    assert module("trainer.ppo.v1.trainer_base").calculate_debug_metrics({}) == {"whose": "verl"}


def test_one_part_alone(fake_verl: None) -> None:
    assert verl.install(parts=["offpolicy_metrics"]) == [METRICS_PLACES[0]]
    assert module("utils.debug.metrics").calculate_debug_metrics({})["whose"] == "verl"
    helper = module("trainer.ppo.rollout_corr_helper")
    assert helper.compute_rollout_correction_weights(Q, MASK) == "verl"
    assert len(verl.install(parts=["rollout_correction"])) == 4
    weights, _ = helper.compute_rollout_correction_weights(P - Q, MASK)
    assert weights[0].tolist() == pytest.approx([math.exp(-0.5), 1])


def test_undeclared_keys_go_by_verls_rule(fake_verl: None) -> None:
    trainer = module("trainer.ppo.v1.trainer_base")
    verl.install()
    aggregator = trainer.MetricsAggregator()
    count = "training/rollout_logprobs_mismatch_count"
    for value in (3.0, 1.0):
        aggregator.add_step_metrics({count: 2, "my_max": value, "my_time": value, "own": value})
    assert aggregator.get_aggregated_metrics() == {count: 4, "my_max": 3.0, "my_time": 4.0, "own": 2.0}
    assert sorted(aggregator.undeclared) == ["my_max", "my_time", "own"]
    assert trainer.MetricsAggregator.__name__ == "MetricsAggregator"
    reduced = trainer.reduce_metrics({count: [2, 2], "my_max": [1, 3], "my_min": [1, 3], "own": [1, 3]})
    assert reduced == {count: 4, "my_max": 3, "my_min": 1, "own": 2}


# --- what is refused, with nothing changed


def test_an_unknown_part(fake_verl: None) -> None:
    with pytest.raises(ValueError, match="unknown part 'critic'; the parts are debug_metrics, offpolicy_metrics"):
        verl.install(parts=["debug_metrics", "critic"])
    assert verl.installed() == []


def test_an_unread_version(fake_verl: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.10.0")
    with pytest.raises(RuntimeError, match=r"verl is 0\.10\.0, whose call sites were not read \(known: 0\.9\.1\)"):
        verl.install()
    with pytest.raises(RuntimeError, match="not read"):
        verl.install(version="0.9.1")
    assert verl.installed() == []
    assert verl.install(version="0.10.0", parts=["debug_metrics"])


def test_source_that_is_not_what_was_read(fake_verl: None, tmp_path: Path) -> None:
    home = tmp_path / "verl" / "trainer" / "ppo" / "rollout_corr_helper.py"
    home.write_text(home.read_text().replace('return {"whose": "verl"}', 'return {"whose": "a patch of verl"}'))
    with pytest.raises(RuntimeError, match=r"rollout_corr_helper:compute_offpolicy_metrics .*it was patched or edited"):
        verl.install()
    assert verl.installed() == []
    assert METRICS_PLACES[0] in verl.install(version="0.9.1")  # vouched for


def test_other_parameters_even_if_vouched_for(fake_verl: None, tmp_path: Path) -> None:
    home = tmp_path / "verl" / "utils" / "debug" / "metrics.py"
    home.write_text(home.read_text().replace("(data)", "(data, step)"))
    with pytest.raises(
        RuntimeError, match=r"calculate_debug_metrics of verl 0\.9\.1 takes \(data, step\), not \(data\)"
    ):
        verl.install(version="0.9.1")
    assert verl.installed() == []


def test_a_home_that_lacks_the_name(fake_verl: None) -> None:
    del module("trainer.ppo.rollout_corr_helper").compute_offpolicy_metrics
    with pytest.raises(RuntimeError, match="has no compute_offpolicy_metrics: nothing was changed"):
        verl.install()
    assert verl.installed() == []


def test_a_home_that_lacks_the_class(fake_verl: None) -> None:
    del module("trainer.ppo.ray_trainer").RayPPOTrainer
    with pytest.raises(RuntimeError, match=r"has no RayPPOTrainer\._compute_old_log_prob: nothing was changed"):
        verl.install(parts=["debug_metrics", "actor"])
    assert verl.installed() == verl.waiting() == []


def test_a_home_that_cannot_be_imported_is_named(fake_verl: None, tmp_path: Path) -> None:
    (tmp_path / "verl" / "trainer" / "ppo" / "v1" / "utils.py").write_text("import transfer_queue_of_verl\n")
    left = r"leave 'aggregator' out with parts=\['debug_metrics', 'offpolicy_metrics', 'reduce_metrics'\]"
    with pytest.raises(RuntimeError, match=left):
        verl.install()
    assert verl.installed() == []


def test_without_verl() -> None:
    with pytest.raises(ImportError, match="verl is not installed"):
        verl.install()
    with pytest.raises(ImportError, match="cannot import verl"):
        verl.offpolicy_metrics.fn(Q, P, MASK)


def test_a_function_without_source_has_no_fingerprint() -> None:
    assert fingerprint(len) == "?"
    assert fingerprint(test_without_verl) == fingerprint(test_without_verl) != fingerprint(write)


# --- waiting


def test_lazily_nothing_is_imported_and_modules_are_changed_as_they_come(fake_verl: None) -> None:
    assert verl.install(lazily=True) == []
    assert [n for n in sys.modules if n.startswith("verl.")] == []
    assert len(verl.waiting()) == 4
    trainer = module("trainer.ppo.v1.trainer_base")  # imports three of the homes by itself
    assert trainer.calculate_debug_metrics.verls_own({}) == {"whose": "verl"}
    assert trainer.MetricsAggregator().get_aggregated_metrics() == {}
    assert verl.waiting() == ["verl.trainer.ppo.rollout_corr_helper:compute_offpolicy_metrics"]
    assert verl.installed() == METRICS_PLACES[1:]
    module("trainer.ppo.rollout_corr_helper")
    assert verl.waiting() == []
    home = module("utils.debug.metrics")
    assert home.__spec__.loader is home.__loader__
    assert isinstance(home.__loader__, SourceFileLoader)
    verl.uninstall()
    assert trainer.calculate_debug_metrics({}) == {"whose": "verl"}


def test_the_actor_waits_for_the_engine_that_is_used(fake_verl: None) -> None:
    verl.install(parts=["actor"])
    assert "verl.workers.engine.megatron.transformer_impl" not in sys.modules
    engine = module("workers.engine.fsdp.transformer_impl").FSDPEngineWithLMHead
    assert engine.forward_step.verls_own(engine(), None, None, True) == "verl"
    assert engine().forward_step(None, None, True) == "verl"
    assert (
        "verl.workers.engine.megatron.transformer_impl:MegatronEngineWithLMHead._lm_head_logits_processor"
        in verl.waiting()
    )


def test_uninstall_stops_the_waiting(fake_verl: None) -> None:
    before = list(sys.meta_path)
    verl.install(lazily=True)
    assert len(sys.meta_path) == len(before) + 1
    verl.uninstall()
    assert sys.meta_path == before
    assert verl.waiting() == []
    assert module("utils.debug.metrics").calculate_debug_metrics({}) == {"whose": "verl"}


def test_a_late_home_of_other_source_is_an_error_of_its_import(fake_verl: None, tmp_path: Path) -> None:
    home = tmp_path / "verl" / "utils" / "debug" / "metrics.py"
    home.write_text(home.read_text().replace('"verl"', '"a patch"'))
    verl.install(parts=["debug_metrics"], lazily=True)
    with pytest.raises(RuntimeError, match="it was patched or edited"):
        module("utils.debug.metrics")
    assert verl.installed() == []


def test_a_late_home_that_fails_by_itself_fails_as_without_us(fake_verl: None, tmp_path: Path) -> None:
    (tmp_path / "verl" / "utils" / "debug" / "metrics.py").write_text("import no_such_module_of_verl\n")
    verl.install(parts=["debug_metrics"], lazily=True)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_of_verl"):
        module("utils.debug.metrics")
    assert verl.waiting() == ["verl.utils.debug.metrics:calculate_debug_metrics"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (None, "aggregator debug_metrics offpolicy_metrics reduce_metrics"),
        ("debug_metrics, actor", "actor debug_metrics"),
    ],
)
def test_everywhere_installs_what_the_environment_says(tmp_path: Path, parts: str | None, expected: str) -> None:
    """In a process of its own, as verl imports it: nothing of verl is loaded for it."""
    write(tmp_path)
    (tmp_path / "verl-0.9.1.dist-info").mkdir()
    (tmp_path / "verl-0.9.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.1\n")
    program = (
        "import sys, numerics.integrations.verl.everywhere\n"
        "from numerics.integrations import verl\n"
        "places = verl.waiting()\n"
        "of = {p for p, keys in verl.PARTS.items() if {verl.sites.SITES[k].place for k in keys} <= set(places)}\n"
        "print(*sorted(of)); print('verl' in sys.modules, verl.installed())"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NUMERICS_VERL_PARTS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(numerics.__file__).parents[1])])
    if parts is not None:
        environment["NUMERICS_VERL_PARTS"] = parts
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [expected, "False []"]
