"""Where verl defines what `install` replaces, and how to tell that it is still what was read."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

__all__ = ["KNOWN_VERSIONS", "PARTS", "SITES", "Site", "fingerprint"]

#: versions of verl whose call sites were read
KNOWN_VERSIONS = ("0.9.1",)


@dataclass(frozen=True, kw_only=True)
class Site:
    """A function or class of verl: its home, what it is called there, and what its source was when it was read.

    name: an attribute of the module, or ``Class.method``. source: where its text stands if ``name`` is no function of
    its own (an autograd function's ``apply``). parameters: names, in order, without ``self``. fingerprints: version ->
    `fingerprint`. only_here: only this module's name is changed, not every module that imported it.
    """

    module: str
    name: str
    parameters: tuple[str, ...]
    fingerprints: Mapping[str, str]
    source: str | None = None
    only_here: bool = False

    @property
    def place(self) -> str:
        """``module:name``."""
        return f"{self.module}:{self.name}"

    def owner(self, module: ModuleType) -> Any:
        """The module or class that holds it; `AttributeError` without the class."""
        outer, dot, _ = self.name.rpartition(".")
        return getattr(module, outer) if dot else module

    @property
    def attribute(self) -> str:
        """The name in its owner."""
        return self.name.rpartition(".")[2]

    def check(self, module: ModuleType, version: str, *, vouched: bool) -> Any:
        """verl's object. `RuntimeError` if it is missing, takes other parameters, or its source is not what was read.

        vouched: the user vouches for a version that was not read; then the source may differ.
        """
        try:
            found = vars(self.owner(module))[self.attribute]
            text = self._text(module)
        except (AttributeError, KeyError) as error:
            raise RuntimeError(f"{self.module} of verl {version} has no {self.name}: nothing was changed") from error
        given = tuple(name for name in inspect.signature(text).parameters if name not in ("self", "ctx"))
        if given != self.parameters:
            raise RuntimeError(
                f"{self.place} of verl {version} takes ({', '.join(given)}), not ({', '.join(self.parameters)})"
            )
        known = self.fingerprints.get(version)
        seen = fingerprint(text)
        if not vouched and seen != known:
            raise RuntimeError(
                f"{self.place} says it is of verl {version}, but its source is not the one that was read (fingerprint "
                f"{seen}, known {known}): it was patched or edited; leave its part out, or pass version={version!r} to "
                "vouch for it"
            )
        return found

    def _text(self, module: ModuleType) -> Any:
        found: Any = module
        for name in (self.source or self.name).split("."):
            found = getattr(found, name)
        return found

    def import_home(self) -> ModuleType:
        """The module, imported; `ImportError` of its own."""
        return importlib.import_module(self.module)


def fingerprint(found: Callable[..., Any]) -> str:
    """The first 16 hex digits of the SHA-256 of its source text, without indentation; ``"?"`` if there is no source."""
    try:
        text = inspect.getsource(found)
    except (OSError, TypeError):
        return "?"
    return hashlib.sha256(textwrap.dedent(text).encode()).hexdigest()[:16]


def _site(module: str, name: str, parameters: str, known: str, **more: Any) -> Site:
    return Site(
        module=f"verl.{module}",
        name=name,
        parameters=tuple(parameters.split()),
        fingerprints=MappingProxyType({"0.9.1": known}),
        **more,
    )


#: key in `PARTS` -> site
SITES: Mapping[str, Site] = MappingProxyType(
    {
        "debug_metrics": _site("utils.debug.metrics", "calculate_debug_metrics", "data", "026ebc3947fcafe6"),
        "offpolicy_metrics": _site(
            "trainer.ppo.rollout_corr_helper",
            "compute_offpolicy_metrics",
            "old_log_prob rollout_log_prob response_mask",
            "75d72ca5230c31fa",
        ),
        "weights": _site(
            "trainer.ppo.rollout_corr_helper",
            "compute_rollout_correction_weights",
            "log_ratio response_mask rollout_is rollout_is_threshold rollout_is_batch_normalize",
            "d9e9a5699f51a0ed",
        ),
        "rejections": _site(
            "trainer.ppo.rollout_corr_helper",
            "compute_rollout_rejection_mask",
            "log_ratio response_mask rollout_rs rollout_rs_threshold",
            "574e0669b4c3c381",
        ),
        "weights_and_rejections": _site(
            "trainer.ppo.rollout_corr_helper",
            "compute_rollout_correction_and_rejection_mask",
            "old_log_prob rollout_log_prob response_mask rollout_is rollout_is_threshold rollout_is_batch_normalize "
            "rollout_rs rollout_rs_threshold",
            "bb098706287d75c2",
        ),
        "aggregator": _site("trainer.ppo.v1.utils", "MetricsAggregator", "", "04aa1dff2d2843de"),
        "reduce_metrics": _site("utils.metric.utils", "reduce_metrics", "metrics", "21515c4e5ca01a81"),
        "fsdp_forward_step": _site(
            "workers.engine.fsdp.transformer_impl",
            "FSDPEngineWithLMHead.forward_step",
            "micro_batch loss_function forward_only",
            "35c9ddd611db7d0e",
        ),
        "fsdp_model_outputs": _site(
            "workers.engine.fsdp.transformer_impl",
            "FSDPEngineWithLMHead.prepare_model_outputs",
            "output output_args micro_batch logits_processor_func",
            "8c6d3c14a91f44db",
        ),
        "fused_linear": _site(
            "utils.experimental.torch_functional",
            "FusedLinearForPPO.forward",
            "hidden_states vocab_weights input_ids temperature",
            "854d0375c82c09c0",
        ),
        "fused_cross_entropy": _site(
            "utils.kernel.linear_cross_entropy",
            "linear_cross_entropy",
            "hidden weight labels temperature reduction dist_process_group",
            "0f41cc4b0790174d",
            source="LinearCrossEntropy.forward",
        ),
        "megatron_logits": _site(
            "workers.engine.megatron.transformer_impl",
            "MegatronEngineWithLMHead._lm_head_logits_processor",
            "logits label temperature calculate_sum_pi_squared calculate_entropy distillation_use_topk "
            "distillation_only logits_processor_func batch data_format",
            "c3ad931d17f06c0d",
        ),
        "megatron_fused": _site(
            "models.mcore.model_forward_fused", "fused_forward_model_engine", "vision_model", "87e023deafae3375"
        ),
        "megatron_unpack": _site(
            "models.mcore.model_forward_fused",
            "postprocess_thd_engine",
            "output packed_seq_params input_ids batch_size post_process local_cp_size cp_layout",
            "1b3b7a4ac1240b57",
            only_here=True,
        ),
        "ray_old_log_prob": _site(
            "trainer.ppo.ray_trainer", "RayPPOTrainer._compute_old_log_prob", "batch", "37936dd4c6debf30"
        ),
        "v1_old_log_prob": _site(
            "trainer.ppo.v1.trainer_base", "PPOTrainer._compute_old_log_prob", "batch metrics", "e9ee1fc72ac57177"
        ),
    }
)

#: part -> what it replaces
PARTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "debug_metrics": ("debug_metrics",),
        "offpolicy_metrics": ("offpolicy_metrics",),
        "aggregator": ("aggregator",),
        "reduce_metrics": ("reduce_metrics",),
        "rollout_correction": ("weights", "rejections", "weights_and_rejections"),
        "actor": (
            "fsdp_forward_step",
            "fsdp_model_outputs",
            "fused_linear",
            "fused_cross_entropy",
            "megatron_logits",
            "megatron_fused",
            "megatron_unpack",
            "ray_old_log_prob",
            "v1_old_log_prob",
        ),
    }
)
