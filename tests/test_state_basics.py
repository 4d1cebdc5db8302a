"""States: options, saving, partitions, memory, and two real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from numerics import DivergenceState, MetricState, MismatchState

TIS = {"rule": "truncate", "level": "token", "upper": 2.0}


def batch(seed: int, rows: int = 5, length: int = 7) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q = -4 * torch.rand(rows, length, generator=generator)
    p = q + 0.1 * torch.randn(rows, length, generator=generator)
    return q, p, torch.rand(rows, length, generator=generator) > 0.3


def state(seed: int | None = None) -> MetricState:
    made = MetricState(corrections={"tis": TIS})
    return made if seed is None else made.update(*batch(seed))


def test_options_must_agree() -> None:
    with pytest.raises(ValueError, match=r"epsilon is 1e-06 here and 0\.5 there"):
        DivergenceState().merge(DivergenceState(epsilon=0.5))
    with pytest.raises(ValueError, match=r"compare_dtype is torch\.float32 here and torch\.float64 there"):
        MetricState().merge(MetricState(compare_dtype=torch.float64))
    with pytest.raises(ValueError, match="corrections is"):
        state().merge(MetricState())
    with pytest.raises(TypeError, match="cannot merge a MismatchState into a DivergenceState"):
        DivergenceState().merge(MismatchState())  # type: ignore[arg-type]


def test_a_saved_state_is_exact() -> None:
    one = state(1)
    assert MetricState.from_json(one.to_json()).compute() == one.compute()
    assert MetricState.from_state_dict(one.state_dict()).totals == one.totals
    assert MetricState.from_state_dict(json.loads(json.dumps(one.state_dict()))).merge(state(2)).compute() == (
        state(1).merge(state(2)).compute()
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "numerics.state/0"}, "not a saved state of schema 'numerics.state/1': found 'numerics.state/0'"),
        ({"kind": "mismatch"}, "a saved 'mismatch' state cannot be read as 'metrics'"),
        ({"totals": {"items": []}}, "does not hold the totals of this version"),
        ({"options": None}, "is damaged"),
    ],
)
def test_what_is_no_saved_state_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetricState.from_state_dict({**state(1).state_dict(), **change})


def test_truncated_text_is_refused() -> None:
    with pytest.raises(ValueError, match="the text is no JSON"):
        MetricState.from_json(state(1).to_json()[:-10])


def test_fields_of_the_parts() -> None:
    got = state(1).compute()
    assert {"logprobs_mismatch_count", "k3", "correction/tis/ratio_truncated_max"} <= got.keys()
    assert got["correction/tis/ratio_max"] == got["ratio_max"]
    assert got["valid_count"] == got["correction/tis/valid_count"]


def test_memory_does_not_grow_with_tokens() -> None:
    """A sum grows by one binary digit each time the tokens double."""
    small, large = state(1), state(1)
    large.update(*batch(2, rows=50, length=4000))
    assert len(large.to_json()) < 1.5 * len(small.to_json())


_RANK = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, sys.argv[4])
from test_state_basics import batch, state
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
q, p, mask = batch(3)
mine = slice(0, 4) if rank == 0 else slice(4, 5)  # uneven
whole = state().update(q[mine], p[mine], mask[mine]).reduce()
print(whole.to_json())
"""


def test_reduce_over_two_real_ranks(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _RANK]
    extra = [str(tmp_path / "store"), str(Path(__file__).parent)]
    ranks = [
        subprocess.Popen([*command, str(r), "2", *extra], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for r in range(2)
    ]
    said = [process.communicate(timeout=120) for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], said
    first, second = (out.strip().splitlines()[-1] for out, _ in said)
    assert first == second
    assert MetricState.from_json(first).compute() == state().update(*batch(3)).compute()


def test_reduce_alone_is_a_copy() -> None:
    one = state(1)
    copy = one.reduce()
    copy.merge(state(2))
    assert one.compute() == state(1).compute()
