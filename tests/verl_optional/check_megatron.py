"""verl's Megatron head on a CPU, two tensor-parallel gloo ranks, with the part "actor" installed.

Run where verl and megatron-core are installed (README.md beside this file); pytest collects it only by name:

    PYTHONPATH=. python -m pytest -c /dev/null -p no:cacheprovider tests/verl_optional/check_megatron.py

What runs is verl's `MegatronEngineWithLMHead._lm_head_logits_processor` on Megatron's vocab-parallel cross-entropy, and
verl's packing and unpacking around the fused forward. What does not: Megatron's models, and the Triton kernel of the
fused forward, for which a torch function stands in.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("megatron.core")

RANKS, VOCAB, T = 2, 24, 0.7


def spawn(test: Any) -> None:
    """Run ``test(rank)`` on every rank; an exception of one is ours."""
    torch.multiprocessing.spawn(_rank, args=(test,), nprocs=RANKS)


def _rank(rank: int, test: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29643", "RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    sys.path.insert(0, str(Path(__file__).parent))
    importlib.import_module("cpu_platform")
    parallel_state = importlib.import_module("megatron.core.parallel_state")
    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=RANKS)
    test(rank)
    torch.distributed.destroy_process_group()


def shard(rank: int, whole: torch.Tensor) -> torch.Tensor:
    return whole.chunk(RANKS, dim=-1)[rank].contiguous()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("calculate_entropy", [True, False])
def test_logits_processor(dtype: str, calculate_entropy: bool) -> None:
    spawn(Processor(dtype=dtype, calculate_entropy=calculate_entropy))


class Processor:
    """Both log-probs of 3 sequences, each as one rank of two sees them."""

    def __init__(self, *, dtype: str, calculate_entropy: bool) -> None:
        self.dtype, self.calculate_entropy = dtype, calculate_entropy

    def __call__(self, rank: int) -> None:
        from numerics.integrations import verl as ours
        from numerics.integrations.verl.actor import KEY

        engine_module = importlib.import_module("verl.workers.engine.megatron.transformer_impl")
        engine = object.__new__(engine_module.MegatronEngineWithLMHead)
        engine.engine_config = SimpleNamespace(entropy_from_logits_with_chunking=False)
        generator = torch.Generator().manual_seed(2)
        whole = (torch.randn(3, 5, VOCAB, generator=generator) * 3).to(getattr(torch, self.dtype))
        label = torch.randint(0, VOCAB, (3, 5), generator=generator)

        def run() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
            given = shard(rank, whole).requires_grad_()
            found = engine._lm_head_logits_processor(
                given * 1,
                label,
                torch.full((3, 5), T),
                calculate_sum_pi_squared=False,
                calculate_entropy=self.calculate_entropy,
                distillation_use_topk=False,
                distillation_only=False,
                logits_processor_func=None,
                batch=None,
                data_format="thd",
            )
            found["log_probs"].sum().backward()
            assert given.grad is not None
            return {name: x.detach().clone() for name, x in found.items()}, given.grad

        before, gradient = run()
        ours.install(parts=["actor"])
        after, gradient_after = run()
        assert set(after) == {*before, KEY}
        assert all(torch.equal(after[name], x) for name, x in before.items())
        assert torch.equal(gradient, gradient_after)
        raw = torch.log_softmax(whole.float(), -1).gather(-1, label[..., None])[..., 0]
        assert after[KEY].dtype == torch.float32
        torch.testing.assert_close(after[KEY], raw, rtol=1e-6, atol=1e-6)
        assert (after[KEY] - after["log_probs"]).abs().max() > 0.1
        ours.uninstall()


@pytest.mark.parametrize("calculate_entropy", [True, False])
def test_fused_forward(calculate_entropy: bool) -> None:
    spawn(Fused(calculate_entropy=calculate_entropy))


class Fused:
    """Packing, fused forward and unpacking of ragged sequences, the kernel and the model being stand-ins."""

    def __init__(self, *, calculate_entropy: bool) -> None:
        self.calculate_entropy = calculate_entropy

    def __call__(self, rank: int) -> None:
        from numerics.integrations import verl as ours
        from numerics.integrations.verl.actor import KEY

        home = importlib.import_module("verl.utils.kernel.linear_cross_entropy")
        home.linear_cross_entropy = kernel
        fused = importlib.import_module("verl.models.mcore.model_forward_fused")
        fused.linear_cross_entropy = kernel
        generator = torch.Generator().manual_seed(3)
        rows = [torch.randint(0, VOCAB, (n,), generator=generator) for n in (4, 1, 7)]
        ids = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        weight = torch.randn(VOCAB, VOCAB, generator=generator)

        def run() -> dict[str, Any]:
            forward = fused.fused_forward_model_engine(False)
            return forward(Model(fused, weight), ids, ids.clone(), {}, T, self.calculate_entropy, 0)  # type: ignore[no-any-return]

        before = run()
        ours.install(parts=["actor"])
        after = run()
        assert set(after) == {*before, KEY}
        assert all(torch.equal(after[name].values(), x.values()) for name, x in before.items())
        for row, raw in zip(rows, after[KEY].unbind(), strict=True):
            logits = torch.nn.functional.one_hot(row, VOCAB).float() @ weight.t()
            want = torch.log_softmax(logits, -1)[:-1].gather(-1, row[1:, None])[:, 0]
            torch.testing.assert_close(raw[:-1], want, rtol=1e-6, atol=1e-6)
        ours.uninstall()
        assert KEY not in run()


class Model:
    """One layer of one-hot hidden states, then the kernel that the module of the fused forward has."""

    pre_process = post_process = True
    config = SimpleNamespace(fp8=None)

    def __init__(self, fused: Any, weight: torch.Tensor) -> None:
        self.fused, self.weight = fused, weight

    def __call__(self, *, temperature: float, input_ids: torch.Tensor, labels: torch.Tensor, **rest: Any) -> Any:
        hidden = torch.nn.functional.one_hot(input_ids[0], VOCAB).float()
        log_probs, entropy = self.fused.linear_cross_entropy(hidden, self.weight, labels[0], temperature, "none", None)
        return SimpleNamespace(log_probs=log_probs, entropy=entropy)


def kernel(
    hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, temperature: float, reduction: str, group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """What verl's Triton kernel computes, in torch."""
    lp = torch.log_softmax(hidden @ weight.t() / temperature, -1)
    return lp.gather(-1, labels[:, None])[:, 0], -(lp.exp() * lp).sum(-1)
