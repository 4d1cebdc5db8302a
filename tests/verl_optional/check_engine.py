"""verl's own FSDP engine on a CPU, with the part "actor" installed: a tiny random transformer, no download.

Run where verl is installed (README.md beside this file); pytest collects it only by name:

    PYTHONPATH=. python -m pytest -c /dev/null -p no:cacheprovider tests/verl_optional/check_engine.py

What runs is verl's: `FSDPEngineWithLMHead` with FSDP2 over one gloo rank, its micro-batching, its forward and backward,
`TrainingWorker`'s post-processing, and `RayPPOTrainer._compute_old_log_prob`. `cpu_platform` tells verl what a CPU is.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
import cpu_platform  # noqa: F401 - before anything else of verl
from omegaconf import OmegaConf
from tensordict import TensorDict
from transformers import LlamaConfig, LlamaForCausalLM
from verl import DataProto
from verl.trainer.config import CheckpointConfig
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu
from verl.utils.experimental import torch_functional
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.padding import left_right_2_no_padding, response_from_nested

import numerics
from numerics.integrations import verl as ours
from numerics.integrations.verl.actor import KEY

VOCAB = 97
PROMPTS, RESPONSES = (3, 5, 2, 4), (6, 1, 4, 3)


@pytest.fixture(scope="module", autouse=True)
def one_rank() -> Iterator[None]:
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29633",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
    }
    torch.distributed.init_process_group("gloo")
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    assert ours.installed() == []
    yield
    ours.uninstall()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return random_llama(str(tmp_path_factory.mktemp("llama")), tied=False)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For the fused kernels, which read the weight of the head: verl shards a head of its own, as FSDP2 unit, away."""
    return random_llama(str(tmp_path_factory.mktemp("tied")), tied=True)


def random_llama(path: str, *, tied: bool) -> str:
    """Random weights of a two-layer Llama."""
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,  # far from uniform
        architectures=["LlamaForCausalLM"],
        tie_word_embeddings=tied,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@functools.lru_cache(maxsize=8)
def engine(path: str, dtype: str, fused: bool) -> Any:
    """verl's engine, made and initialised as its worker does it."""
    kernels: dict[str, Any] = {"use_fused_kernels": True, "fused_kernel_options": {"impl_backend": "torch"}}
    model = HFModelConfig(
        path=path,
        load_tokenizer=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"},
        **(kernels if fused else {}),
    )
    config = FSDPEngineConfig(
        strategy="fsdp2", fsdp_size=1, dtype=dtype, use_fused_kernels=fused, mixed_precision={"param_dtype": dtype}
    )
    made = transformer_impl.FSDPEngineWithLMHead(
        model, config, FSDPOptimizerConfig(lr=1e-3, total_training_steps=10), CheckpointConfig()
    )
    made.initialize()
    return made


def data(batch: Any = None, **more: Any) -> TensorDict:
    """Four sequences in verl's layout without padding, in micro-batches of two."""
    td = left_right_2_no_padding((batch or padded()).to_tensordict())
    tu.assign_non_tensor(
        td,
        **{
            "temperature": 0.7,
            "calculate_entropy": True,
            "use_dynamic_bsz": False,
            "micro_batch_size_per_gpu": 2,
            "global_batch_size": 4,
            "batch_num_tokens": None,
            "dp_size": 1,
            **more,
        },
    )
    return td


def padded() -> DataProto:
    """Prompts padded on the left, responses on the right, as a rollout gives them."""
    generator = torch.Generator().manual_seed(1)
    longest, answer = max(PROMPTS), max(RESPONSES)
    ids = torch.randint(0, VOCAB, (len(PROMPTS), longest + answer), generator=generator)
    attention = torch.zeros_like(ids)
    for row, (p, r) in enumerate(zip(PROMPTS, RESPONSES, strict=True)):
        attention[row, longest - p : longest + r] = 1
    return DataProto.from_dict(
        {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp(min=0),
            "prompts": ids[:, :longest],
            "responses": ids[:, longest:],
            "response_mask": attention[:, longest:],
        }
    )


def infer(made: Any, **more: Any) -> dict[str, torch.Tensor]:
    with made.eval_mode():
        found = made.infer_batch(data(**more), loss_function=None)["model_output"]
    return {name: x.values() for name, x in found.items()}


LAYOUTS = pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
TEMPERATURES = pytest.mark.parametrize("temperature", [0.7, 1.0])


@LAYOUTS
@TEMPERATURES
def test_raw_log_probs_stand_beside_the_tempered_ones(checkpoint: str, packed: bool, temperature: float) -> None:
    stand_beside(engine(checkpoint, "float32", False), packed, False, temperature)


def stand_beside(made: Any, packed: bool, fused: bool, temperature: float) -> None:
    options = {"use_remove_padding": packed, "use_fused_kernels": fused, "temperature": temperature}
    before = infer(made, **options)
    at_one = infer(made, **{**options, "temperature": 1.0})["log_probs"]
    assert KEY not in before
    ours.install(parts=["actor"])
    after = infer(made, **options)
    assert set(after) == {*before, KEY}
    for name, x in before.items():
        assert torch.equal(after[name], x), f"{name} changed"
    raw = after[KEY]
    assert raw.dtype == torch.float32
    assert not raw.requires_grad
    assert raw.shape == at_one.shape == (sum(PROMPTS) + sum(RESPONSES),)
    torch.testing.assert_close(raw, at_one, rtol=1e-5, atol=1e-5)
    if temperature == 1.0:
        assert torch.equal(raw, after["log_probs"])
    else:
        assert (raw - after["log_probs"]).abs().max() > 0.1


@LAYOUTS
def test_raw_log_probs_are_float32_where_verls_are_bfloat16(checkpoint: str, packed: bool) -> None:
    """Without flash-attn verl's own log-probs of bfloat16 logits are rounded to 8 bits."""
    made = engine(checkpoint, "bfloat16", False)
    before = infer(made, use_remove_padding=packed, temperature=1.0)["log_probs"]
    ours.install(parts=["actor"])
    raw = infer(made, use_remove_padding=packed, temperature=1.0)[KEY]
    assert raw.dtype == torch.float32
    assert before.dtype == torch.bfloat16
    assert not torch.equal(raw, before.float())
    torch.testing.assert_close(raw, before.float(), rtol=2**-7, atol=2**-4)


@LAYOUTS
def test_a_policy_update_sees_them_and_its_gradients_stay(checkpoint: str, packed: bool) -> None:
    update_sees(engine(checkpoint, "float32", False), packed, False)


def update_sees(made: Any, packed: bool, fused: bool) -> None:
    seen: list[set[str]] = []

    def loss(model_output: Any, data: Any, dp_group: Any = None) -> tuple[torch.Tensor, dict[str, float]]:
        seen.append(set(model_output))
        if KEY in model_output:
            assert not model_output[KEY].requires_grad
            assert model_output[KEY].offsets().equal(model_output["log_probs"].offsets())
        return -model_output["log_probs"].values().sum() + model_output["entropy"].values().sum(), {}

    def gradients() -> list[torch.Tensor]:
        with made.train_mode():
            made.optimizer_zero_grad()
            batch = data(use_remove_padding=packed, use_fused_kernels=fused)
            made.forward_backward_batch(batch, loss, forward_only=False)
            return [p.grad.full_tensor().clone() for p in made.module.parameters()]

    before = gradients()
    ours.install(parts=["actor"])
    after = gradients()
    assert seen[0] == {"log_probs", "entropy"}
    assert seen[-1] == {"log_probs", "entropy", KEY}
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert any(bool(g.abs().max() > 0) for g in after)


class Group:
    """A worker group of one worker in this process: verl's `TrainingWorker.infer_batch` without Ray around it."""

    def __init__(self, made: Any) -> None:
        self.worker = TrainingWorker.__new__(TrainingWorker)
        self.worker.engine, self.worker.engine_config, self.worker.model_config = made, made.engine_config, {}
        self.worker.loss_fn = self.worker.flops_counter = None
        self.worker.device_name = "cpu"
        self.name = "a group"

    def compute_log_prob(self, batch: Any) -> Any:
        tu.assign_non_tensor(batch, use_dynamic_bsz=False, micro_batch_size_per_gpu=2, temperature=0.7)
        tu.assign_non_tensor(batch, global_token_num=None, use_remove_padding=True)
        infer_batch = TrainingWorker.infer_batch.__wrapped__  # without the dispatch over a Ray group
        found = infer_batch(self.worker, batch)
        found["metrics"]["mfu"] = 0.0
        return found


def trainer(made: Any, mode: str) -> Any:
    """What `_compute_old_log_prob` reads of a trainer."""
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"logprobs_mode": mode}, "actor": {}}})
    return SimpleNamespace(config=config, actor_rollout_wg=Group(made))


def test_the_trainer_hands_them_on_to_the_metrics(checkpoint: str) -> None:
    made = engine(checkpoint, "float32", False)
    ours.install(parts=["actor", "debug_metrics"])
    batch, one = padded(), trainer(made, "raw_logprobs")
    old, _ = RayPPOTrainer._compute_old_log_prob(one, batch)
    assert isinstance(one.actor_rollout_wg, Group)
    raw, tempered, mask = old.batch[KEY], old.batch["old_log_probs"], batch.batch["response_mask"]
    assert raw.shape == tempered.shape == mask.shape
    batch = batch.union(old)
    batch.batch["rollout_log_probs"] = raw.clone()  # an engine that reports raw log-probs, and agrees to the bit
    from verl.utils.debug.metrics import calculate_debug_metrics

    metrics = calculate_debug_metrics(batch)
    assert metrics["training/rollout_logprobs_mismatch_count"] == 0
    assert metrics["training/rollout_logprobs_valid_count"] == sum(RESPONSES)
    tempered_too = numerics.mismatch(raw, tempered, mask)
    assert tempered_too.logprobs_mismatch_count > 0  # what the metrics would say without log_probs_for_metrics


def test_with_tempered_rollout_log_probs_the_trainer_keeps_to_old_log_probs(checkpoint: str) -> None:
    ours.install(parts=["actor"])
    old, _ = RayPPOTrainer._compute_old_log_prob(
        trainer(engine(checkpoint, "float32", False), "processed_logprobs"), padded()
    )
    assert KEY not in old.batch


class Batch:
    """What verl's V1 trainer knows of a batch whose tensors are in the TransferQueue; and that queue, a dictionary."""

    partition_id, keys = "train", ("a", "b", "c", "d")

    def __init__(self, made: Any, mask: torch.Tensor) -> None:
        self.made, self.extra_info = made, {}
        rows = [row[row == 1] for row in mask]
        self.fields = {"response_mask": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    def __len__(self) -> int:
        return len(self.keys)

    def compute_log_prob(self, batch: Any) -> Any:
        """The worker group's part: what the engine returns goes into the queue."""
        with self.made.eval_mode():
            output = self.made.infer_batch(data(temperature=batch.extra_info["temperature"]), loss_function=None)
        self.fields |= output["model_output"]
        return self

    def kv_batch_get(self, *, keys: Any, partition_id: str, select_fields: list[str]) -> TensorDict:
        return TensorDict({name: self.fields[name] for name in select_fields}, batch_size=[len(self)])

    def kv_batch_put(self, *, keys: Any, partition_id: str, fields: TensorDict) -> Any:
        self.fields |= dict(fields.items())
        return self


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_the_v1_trainer_makes_its_metrics_of_them(checkpoint: str, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    made, mask = engine(checkpoint, "float32", False), padded().batch["response_mask"]
    ours.install(parts=["actor", "debug_metrics"])
    lp = infer(made)
    raw = torch.nested.nested_tensor_from_jagged(lp[KEY], data()["input_ids"].offsets())
    batch = Batch(made, mask)
    batch.fields["rollout_log_probs"] = response_from_nested(raw, batch.fields["response_mask"])
    batch.fields["responses"] = batch.fields["response_mask"]
    monkeypatch.setattr(trainer_base, "tq", batch)
    rollout = {"logprobs_mode": mode, "temperature": 0.7, "calculate_log_probs": True}
    actor = {"loss_agg_mode": "token-mean", "loss_scale_factor": None}
    config = OmegaConf.create({"algorithm": {}, "actor_rollout_ref": {"rollout": rollout, "actor": actor}})
    metrics: dict[str, Any] = {}
    one = SimpleNamespace(config=config, actor_rollout_wg=batch)
    assert trainer_base.PPOTrainer._compute_old_log_prob(one, batch, metrics) is batch
    assert metrics["training/rollout_logprobs_valid_count"] == sum(RESPONSES)
    assert (metrics["training/rollout_logprobs_mismatch_count"] == 0) == (mode == "raw_logprobs")


def test_every_part_goes_in_and_comes_out(checkpoint: str) -> None:
    before = {
        name: dict(vars(module))
        for name, module in list(sys.modules.items())
        if name == "verl" or name.startswith("verl.")
    }
    methods = dict(vars(transformer_impl.FSDPEngineWithLMHead))
    places = ours.install(parts=list(ours.PARTS))
    assert ours.install(parts=list(ours.PARTS)) == places
    assert "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead.prepare_model_outputs" in places
    assert ours.uninstall() == places
    for name, names in before.items():
        now = vars(sys.modules[name])
        assert all(now.get(attribute) is value for attribute, value in names.items()), name
    assert dict(vars(transformer_impl.FSDPEngineWithLMHead)) == methods


# --- fused kernels: last, since verl's monkey patch for them changes the model's class for the rest of the process


@LAYOUTS
@TEMPERATURES
def test_fused_raw_log_probs_stand_beside_the_tempered_ones(tied: str, packed: bool, temperature: float) -> None:
    stand_beside(engine(tied, "float32", True), packed, True, temperature)


@LAYOUTS
def test_a_fused_policy_update_sees_them_and_its_gradients_stay(tied: str, packed: bool) -> None:
    update_sees(engine(tied, "float32", True), packed, True)


def test_a_fused_forward_that_goes_another_way_is_an_error(tied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose fused forward does not end in a kernel that was replaced: no made-up value."""
    made = engine(tied, "float32", True)
    ours.install(parts=["actor"])
    kernel = torch_functional.FusedLinearForPPO
    monkeypatch.setattr(kernel, "forward", kernel.forward.verls_own)
    with pytest.raises(RuntimeError, match="made 0 sets of raw log-probs"):
        infer(made, use_remove_padding=True, use_fused_kernels=True, temperature=0.7)
    monkeypatch.undo()  # before `uninstall` looks
