"""Raw log-probs beside the tempered ones: their values, and verl's functions wrapped, on fakes of a few lines."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from numerics.integrations.verl import actor
from numerics.integrations.verl.actor import KEY, raw_logprobs

T, VOCAB = 0.5, 11


def logits_of(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, VOCAB, generator=generator) * 4).to(dtype)


def ids_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed + 100))


def exact(logits: torch.Tensor, ids: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    return torch.log_softmax(logits.double() / temperature, -1).gather(-1, ids[..., None])[..., 0]


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> None:
    """A module of verl for this test only."""
    parts = name.split(".")
    for package in (".".join(parts[:k]) for k in range(1, len(parts))):
        if package not in sys.modules:
            monkeypatch.setitem(sys.modules, package, ModuleType(package))
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)


# --- the log-probs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(3, 4), (7,), (), (0,), (2, 0)])
def test_raw_log_probs_are_log_softmax_of_the_upcast_logits(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    logits, ids = logits_of(*shape, dtype=dtype), ids_of(*shape)
    before = logits.clone()
    found = raw_logprobs(logits.requires_grad_(), ids)
    assert found.shape == shape
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert not found.requires_grad
    assert torch.equal(logits.detach(), before)
    tight = 1e-13 if dtype == torch.float64 else 4e-6
    torch.testing.assert_close(found.double(), exact(before, ids), rtol=tight, atol=tight)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_chunks_change_no_bit(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    logits, ids = logits_of(5, 3, dtype=torch.bfloat16), ids_of(5, 3)
    whole = raw_logprobs(logits, ids)
    sizes: list[int] = []
    softmax = torch.log_softmax
    monkeypatch.setattr(actor, "_CHUNK", 4 * VOCAB * rows)
    monkeypatch.setattr(torch, "log_softmax", lambda x, dim: sizes.append(len(x)) or softmax(x, dim=dim))
    assert torch.equal(raw_logprobs(logits, ids), whole)
    assert max(sizes) == rows
    assert sum(sizes) == 15


def test_a_view_of_logits_will_do() -> None:
    view, ids = logits_of(4, 6).transpose(0, 1), ids_of(6, 4)
    assert not view.is_contiguous()
    torch.testing.assert_close(raw_logprobs(view, ids), exact(view, ids).float(), rtol=4e-6, atol=4e-6)


# --- FSDP


LENGTHS = (3, 1, 2)
TOTAL = sum(LENGTHS)


@pytest.fixture
def tensordicts(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(
        monkeypatch,
        "verl.utils.tensordict_utils",
        get_non_tensor_data=lambda *, data, key, default: data["options"].get(key, default),
        get=lambda data, key: data.get(key),
    )


class Engine:
    """Takes away ``pad_size`` places at the end, as verl's engine does after gathering."""

    def _gather_and_unpad_packed(self, values: torch.Tensor, pad_size: int) -> torch.Tensor:
        return values[: len(values) - pad_size]


def fsdp(
    logits: torch.Tensor, ids: torch.Tensor, *, packed: bool, pad_size: int = 0, temperature: float = T, **options: Any
) -> tuple[Any, ...]:
    """The arguments of ``prepare_model_outputs``."""
    rows = [torch.zeros(n, dtype=torch.int64) for n in LENGTHS]
    batch = {
        "options": {"use_remove_padding": packed, **options},
        "input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged),
    }
    given = {"input_ids_rmpad_rolled": ids, "pad_size": pad_size, "temperature_is_one": temperature == 1.0}
    return Engine(), SimpleNamespace(logits=logits), given, batch, None


def tempered_only(dtype: torch.dtype = torch.float32) -> Callable[..., dict[str, torch.Tensor]]:
    def prepare_model_outputs(
        self: Any, output: Any, output_args: Any, micro_batch: Any, func: Any
    ) -> dict[str, torch.Tensor]:
        values = torch.arange(TOTAL, dtype=dtype).requires_grad_()
        return {"log_probs": torch.nested.nested_tensor_from_jagged(values, micro_batch["input_ids"].offsets())}

    return prepare_model_outputs


@pytest.mark.parametrize("pad_size", [0, 2])
def test_packed_rows(tensordicts: None, pad_size: int) -> None:
    logits, ids = logits_of(1, TOTAL + pad_size), ids_of(TOTAL + pad_size)
    found = actor.fsdp_model_outputs(tempered_only())(*fsdp(logits, ids, packed=True, pad_size=pad_size))
    assert found["log_probs"].values().tolist() == list(range(TOTAL))
    assert found[KEY].offsets().equal(found["log_probs"].offsets())
    torch.testing.assert_close(found[KEY].values(), exact(logits[0], ids)[:TOTAL].float(), rtol=4e-6, atol=4e-6)
    assert not found[KEY].requires_grad


def test_padded_rows(tensordicts: None) -> None:
    logits, ids = logits_of(3, 3, dtype=torch.bfloat16), ids_of(TOTAL)
    found = actor.fsdp_model_outputs(tempered_only())(*fsdp(logits, ids, packed=False))
    valid = torch.cat([row[:n] for row, n in zip(logits, LENGTHS, strict=True)])
    torch.testing.assert_close(found[KEY].values(), exact(valid, ids).float(), rtol=4e-6, atol=4e-6)


def test_sharded_logits_are_gathered(tensordicts: None) -> None:
    logits, ids = logits_of(1, TOTAL), ids_of(TOTAL)
    sharded = SimpleNamespace(full_tensor=lambda: logits, detach=lambda: sharded)
    found = actor.fsdp_model_outputs(tempered_only())(*fsdp(sharded, ids, packed=True))  # type: ignore[arg-type]
    assert torch.equal(found[KEY].values(), raw_logprobs(logits[0], ids))


def test_at_temperature_one_float32_log_probs_are_the_raw_ones(tensordicts: None) -> None:
    given = fsdp(None, None, packed=True, temperature=1.0)  # type: ignore[arg-type] - no logits are read
    found = actor.fsdp_model_outputs(tempered_only())(*given)
    assert torch.equal(found[KEY].values(), found["log_probs"].values())
    assert found["log_probs"].requires_grad
    assert not found[KEY].requires_grad


def test_at_temperature_one_bfloat16_log_probs_are_not_good_enough(tensordicts: None) -> None:
    logits, ids = logits_of(1, TOTAL, dtype=torch.bfloat16), ids_of(TOTAL)
    given = fsdp(logits, ids, packed=True, temperature=1.0)
    found = actor.fsdp_model_outputs(tempered_only(torch.bfloat16))(*given)
    assert found[KEY].dtype == torch.float32
    assert torch.equal(found[KEY].values(), raw_logprobs(logits[0], ids))


def test_without_log_probs_nothing_is_added(tensordicts: None) -> None:
    wrapped = actor.fsdp_model_outputs(lambda *args: {"values": 1})
    assert wrapped(Engine(), None, {}, None, None) == {"values": 1}


# --- fused kernels


class Kernel:
    """Log-probs and entropies of hidden states, and how often, at which temperature, with gradient or without."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, bool]] = []

    def __call__(
        self, hidden: torch.Tensor, weight: torch.Tensor, ids: torch.Tensor, temperature: float = 1.0, *rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        lp = torch.log_softmax(hidden @ weight.t() / temperature, -1)
        self.calls.append((temperature, lp.requires_grad))
        return lp.gather(-1, ids[..., None])[..., 0], -(lp.exp() * lp).sum(-1)


def linear(kernel: Kernel) -> Callable[..., Any]:
    """As a method of ``FusedLinearForPPO``."""
    return actor.fused_linear(lambda self, *args: kernel(*args))


HIDDEN, WEIGHT = logits_of(1, TOTAL), torch.eye(VOCAB)


def fused_step(call: Callable[..., Any], ids: torch.Tensor, temperature: float, times: int = 1) -> Any:
    """A forward step whose model ends in ``times`` calls of a kernel."""

    def forward_step(self: Any, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        hidden = HIDDEN.clone().requires_grad_()
        for _ in range(times):
            lp, _ = call(hidden, WEIGHT, ids[None], temperature)
        given = fsdp(None, ids, packed=micro_batch, use_fused_kernels=True, temperature=temperature)  # type: ignore[arg-type]
        given[1].log_probs = lp if times else HIDDEN[..., 0]
        return actor.fsdp_model_outputs(tempered_only(torch.bfloat16))(*given), lp if times else None

    return actor.fsdp_forward_step(forward_step)(None, True, None, True)


@pytest.mark.parametrize("which", ["FusedLinearForPPO", "linear_cross_entropy"])
def test_a_fused_kernel_runs_again_at_temperature_one(tensordicts: None, which: str) -> None:
    kernel, ids = Kernel(), ids_of(TOTAL)
    wrapped = linear(kernel) if which == "FusedLinearForPPO" else actor.fused_cross_entropy(kernel)
    call = (lambda *args: wrapped(None, *args)) if which == "FusedLinearForPPO" else wrapped
    found, tempered = fused_step(call, ids, T)
    assert kernel.calls == [(T, True), (1.0, False)]
    torch.testing.assert_close(found[KEY].values(), exact(HIDDEN[0], ids).float(), rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(tempered[0], exact(HIDDEN[0], ids, T).float(), rtol=4e-6, atol=4e-6)
    assert tempered.requires_grad
    kernel.calls.clear()
    found, tempered = fused_step(call, ids, 1.0)
    assert [t for t, _ in kernel.calls] == [1.0]  # nothing twice
    assert torch.equal(found[KEY].values(), tempered[0].detach())
    kernel.calls.clear()
    call(HIDDEN, WEIGHT, ids[None], T)  # outside a forward pass, as in a recomputation: verl's kernel alone
    assert [t for t, _ in kernel.calls] == [T]


@pytest.mark.parametrize("times", [0, 2])
def test_a_model_that_does_not_end_in_one_kernel_is_an_error(tensordicts: None, times: int) -> None:
    call = actor.fused_cross_entropy(Kernel())
    with pytest.raises(RuntimeError, match=f"FSDP: .* made {times} sets of raw log-probs instead of 1"):
        fused_step(call, ids_of(TOTAL), T, times)


def test_padded_rows_of_a_fused_kernel(tensordicts: None) -> None:
    ids = ids_of(3, 3)
    hidden = logits_of(3, 3)

    def forward_step(self: Any) -> Any:
        lp, _ = actor.fused_cross_entropy(Kernel())(hidden, WEIGHT, ids, T)
        given = fsdp(None, ids, packed=False, use_fused_kernels=True)  # type: ignore[arg-type]
        given[1].log_probs = lp
        return actor.fsdp_model_outputs(tempered_only())(*given)

    found = actor.fsdp_forward_step(forward_step)(None)
    valid = torch.cat([row[:n] for row, n in zip(exact(hidden, ids), LENGTHS, strict=True)])
    torch.testing.assert_close(found[KEY].values(), valid.float(), rtol=4e-6, atol=4e-6)


# --- Megatron


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Vocab-parallel log-probs over one rank, which spoil the logits they are given, as Megatron's do."""
    shapes: list[tuple[int, ...]] = []

    def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(logits.shape))
        found = torch.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]
        logits.zero_()
        return found

    stand_in(monkeypatch, "verl.utils.megatron.tensor_parallel", vocab_parallel_log_probs_from_logits=log_probs)
    return shapes


def lm_head(self: Any, logits: torch.Tensor, label: torch.Tensor, temperature: Any, **options: Any) -> Any:
    """verl's processor divides in place, and leaves log-probs out for distillation only."""
    logits.div_(temperature)
    found = torch.log_softmax(logits, -1).gather(-1, label[..., None])[..., 0]
    return {"loss": 1} if options["distillation_only"] else {"log_probs": found}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("chunk", [1, 1 << 26])
def test_megatron_logits_are_read_before_they_are_divided(
    monkeypatch: pytest.MonkeyPatch, parallel: list[tuple[int, ...]], dtype: torch.dtype, chunk: int
) -> None:
    monkeypatch.setattr(actor, "_CHUNK", chunk)
    logits, label = logits_of(2, 5, dtype=dtype), ids_of(2, 5)
    alone = lm_head(None, logits.clone(), label, T, distillation_only=False)
    found = actor.megatron_logits(lm_head)(None, logits.clone(), label, T, distillation_only=False)
    assert torch.equal(found["log_probs"], alone["log_probs"])
    assert found[KEY].dtype == torch.float32
    torch.testing.assert_close(found[KEY], exact(logits, label).float(), rtol=4e-6, atol=4e-6)
    assert len(parallel) == (5 if chunk == 1 else 1)


def test_megatron_distillation_alone_has_none(parallel: list[tuple[int, ...]]) -> None:
    found = actor.megatron_logits(lm_head)(None, logits_of(1, 2), ids_of(1, 2), T, distillation_only=True)
    assert found == {"loss": 1}
    assert parallel == []


def test_megatron_without_tokens(parallel: list[tuple[int, ...]]) -> None:
    found = actor.megatron_logits(lm_head)(None, logits_of(2, 0), ids_of(2, 0), T, distillation_only=False)
    assert found[KEY].shape == (2, 0)


def fused_forward(kernel_calls: int, *, last: bool = True) -> Callable[[], Any]:
    """Megatron's fused forward: a kernel, then log-probs and entropies unpacked in that order."""
    call = actor.fused_cross_entropy(Kernel())
    unpack = actor.megatron_unpack(lambda output, *args: output[:TOTAL])
    ids = ids_of(TOTAL)

    def make(vision_model: bool = False) -> Callable[[], Any]:
        def forward() -> Any:
            if not last:
                return HIDDEN
            lp = entropy = HIDDEN[0, :, 0]
            for _ in range(kernel_calls):
                lp, entropy = call(HIDDEN[0], WEIGHT, ids, T, "none", None)
            return {"log_probs": unpack(lp[None][0]), "entropy": unpack(entropy)}

        return forward

    return actor.megatron_fused(make)(False)  # type: ignore[no-any-return]


def test_megatron_fused_forward() -> None:
    found = fused_forward(1)()
    ids = ids_of(TOTAL)
    assert set(found) == {"log_probs", "entropy", KEY}
    torch.testing.assert_close(found[KEY], exact(HIDDEN[0], ids).float(), rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(found["log_probs"], exact(HIDDEN[0], ids, T).float(), rtol=4e-6, atol=4e-6)
    assert fused_forward(1, last=False)() is HIDDEN
    with pytest.raises(RuntimeError, match=r"Megatron: .* made 0 sets of raw log-probs"):
        fused_forward(0)()
    plain = actor.megatron_unpack(lambda output: output + 1)
    assert plain(torch.zeros(1)).tolist() == [1]  # outside a fused forward


# --- trainers


class Config(SimpleNamespace):
    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)


def config_of(mode: str | None, *, bypass: bool = False, calculate: bool = True) -> Config:
    rollout = Config(calculate_log_probs=calculate, **({} if mode is None else {"logprobs_mode": mode}))
    correction = {"bypass_mode": True} if bypass else None
    return Config(actor_rollout_ref=Config(rollout=rollout), algorithm=Config(rollout_correction=correction))


class Group:
    """A worker group that returns what its workers' engine does."""

    name = "a group"

    def __init__(self, output: dict[str, Any]) -> None:
        self.output = output

    def compute_log_prob(self, batch: Any) -> dict[str, Any]:
        return self.output


@pytest.fixture
def ray(tensordicts: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``_compute_old_log_prob`` of the Ray trainer, wrapped."""
    stand_in(
        monkeypatch,
        "verl.workers.utils.padding",
        no_padding_2_padding=lambda x, data: x * data,
        response_from_nested=lambda x, mask: x,
    )

    def _compute_old_log_prob(self: Any, batch: Any) -> Any:
        assert self.actor_rollout_wg.name == "a group"
        output = self.actor_rollout_wg.compute_log_prob(torch.full((1,), 2.0))
        if batch == "bad":
            raise ZeroDivisionError
        return SimpleNamespace(batch={"old_log_probs": output["log_probs"]}), 0.5

    return actor.ray_old_log_prob(_compute_old_log_prob)


def test_the_ray_trainer_hands_raw_ones_on(ray: Callable[..., Any]) -> None:
    group = Group({"log_probs": torch.tensor([1.0]), KEY: torch.tensor([3.0], dtype=torch.float64)})
    trainer = SimpleNamespace(config=config_of("raw_logprobs"), actor_rollout_wg=group)
    found, mfu = ray(trainer, "batch")
    assert (found.batch["old_log_probs"].item(), found.batch[KEY].item(), mfu) == (1.0, 6.0, 0.5)
    assert found.batch[KEY].dtype == torch.float32
    assert trainer.actor_rollout_wg is group
    with pytest.raises(ZeroDivisionError):
        ray(trainer, "bad")
    assert trainer.actor_rollout_wg is group


@pytest.mark.parametrize("mode", ["processed_logprobs", None])
def test_tempered_rollouts_keep_to_old_log_probs_and_say_so_once(
    ray: Callable[..., Any], mode: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    actor._log_once.cache_clear()
    group = Group({"log_probs": torch.tensor([1.0]), KEY: torch.tensor([3.0])})
    trainer = SimpleNamespace(config=config_of(mode), actor_rollout_wg=group)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert set(ray(trainer, "batch")[0].batch) == {"old_log_probs"}
    assert [f"rollout.logprobs_mode is {mode!r}" in r.message for r in caplog.records] == [True]


def test_workers_without_the_part_are_named(ray: Callable[..., Any]) -> None:
    trainer = SimpleNamespace(config=config_of("raw_logprobs"), actor_rollout_wg=Group({"log_probs": torch.ones(1)}))
    with pytest.raises(
        RuntimeError, match=r"returned no 'log_probs_for_metrics'.*numerics\.integrations\.verl\.everywhere"
    ):
        ray(trainer, "batch")


@pytest.mark.parametrize(
    ("options", "raw"),
    [
        ({"mode": "raw_logprobs"}, True),
        ({"mode": "processed_logprobs"}, False),
        ({"mode": "raw_logprobs", "bypass": True}, False),
        ({"mode": "raw_logprobs", "calculate": False}, False),
    ],
)
def test_the_v1_trainer_makes_its_metrics_of_raw_ones(
    ray: None, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], raw: bool
) -> None:
    class Data(dict):  # type: ignore[type-arg]
        def to_padded_tensor(self) -> Data:
            return self

    lp = torch.tensor([[-1.0, -2.0]])
    queue = {KEY: lp, "rollout_log_probs": lp, "response_mask": torch.ones(1, 2)}

    def kv_batch_get(*, keys: Any, partition_id: str, select_fields: list[str]) -> Data:
        assert (keys, partition_id) == (["a"], "train")
        return Data({name: queue[name] for name in select_fields})

    stand_in(monkeypatch, "verl.trainer.ppo.v1.trainer_base", tq=SimpleNamespace(kv_batch_get=kv_batch_get))
    batch = SimpleNamespace(keys=["a"], partition_id="train")

    def _compute_old_log_prob(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        metrics["training/rollout_logprobs_mismatch_count"] = 2  # of tempered ones
        return batch

    metrics: dict[str, Any] = {}
    trainer = SimpleNamespace(config=config_of(**options))
    assert actor.v1_old_log_prob(_compute_old_log_prob)(trainer, batch, metrics) is batch
    assert metrics["training/rollout_logprobs_mismatch_count"] == (0 if raw else 2)
