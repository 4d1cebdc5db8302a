"""The gate in training loops: any split over micro-batches and ranks gives the verdict of the whole; callbacks."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from numerics import Declared, Gate, GateFailure, Verdict
from numerics.tools.gate import judge, loop
from numerics.tools.gate.callbacks import BatchKeys, attach_trl, lightning_callback, record, verl_metrics
from numerics.tools.gate.tokens import KEPT

HERE = Path(__file__).parent
_SETTINGS = settings(deadline=None, database=None, derandomize=True)

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Ranks = list[list[Tensors]]

_VALUES = st.sampled_from([-1.0, -0.5, -2.0, -1.0 - 2.0**-23])


@st.composite
def batches(draw: st.DrawFn) -> Tensors:
    count = draw(st.integers(0, 3))
    q = [[draw(_VALUES) for _ in range(2)] for _ in range(count)]
    change = st.sampled_from([0.0, 0.0, 0.0, 2.0**-23, 0.25, math.nan])
    p = [[v + draw(change) for v in row] for row in q]
    mask = [[draw(st.sampled_from([1, 1, 0])) for _ in row] for row in q]
    return tuple(torch.tensor(x).reshape(count, 2) for x in (q, p, mask))  # type: ignore[return-value]


_RANKS = st.lists(st.lists(batches(), max_size=3), min_size=1, max_size=3)
_RULES = st.fixed_dictionaries(
    {"allow": st.integers(0, 3), "allow_nonfinite": st.sampled_from([0, 2]), "bits": st.booleans()}
)


def reduced(ranks: Ranks, gates: list[Gate]) -> list[Verdict]:
    """One step of all ranks in one process: `gather` gives everyone's messages to each."""
    messages = []
    for gate, batches in zip(gates, ranks, strict=True):
        for batch in batches:
            gate.update(*batch)
        messages.append(loop._encode(gate._seen, gate.rules))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "gather", lambda mine, group: GATHER(messages))
        return [gate.step() for gate in gates]


def GATHER(messages: list[bytes]) -> list[bytes]:  # noqa: N802  (a fault puts another one here)
    return messages


def whole(ranks: Ranks) -> Tensors:
    flat = [batch for batches in ranks for batch in batches] or [(torch.zeros(0, 2),) * 3]
    return tuple(torch.cat([b[i] for b in flat]) for i in range(3))  # type: ignore[return-value]


def make(rules: dict[str, Any]) -> Gate:
    return Gate(on_failure="record", **rules)


def hold(make: Callable[[dict[str, Any]], Gate] = make) -> None:
    """The property: two steps, each the verdict of all its tokens, on every rank."""

    @settings(_SETTINGS, max_examples=100, phases=[Phase.generate], report_multiple_bugs=False)
    @given(_RANKS, _RANKS, _RULES)
    def any_split(first: Ranks, second: Ranks, rules: dict[str, Any]) -> None:
        width = max(len(first), len(second))
        gates = [make(rules) for _ in range(width)]
        for ranks in (first, second):
            padded = ranks + [[] for _ in range(width - len(ranks))]
            right = judge(*whole(ranks), **rules)
            verdicts = reduced(padded, gates)
            assert len({repr(v) for v in verdicts}) == 1
            verdict = verdicts[0]
            assert repr(verdict.mismatch) == repr(right.mismatch)
            assert [r.code for r in verdict.reasons] == [r.code for r in right.reasons]
            assert (verdict.count, verdict.places) == (right.count, right.places)
            for mine, theirs in ((verdict.first, right.first), (verdict.worst, right.worst)):
                assert [(str(t.rollout), str(t.trainer), t.ulps) for t in mine] == [
                    (str(t.rollout), str(t.trainer), t.ulps) for t in theirs
                ]
        assert all(len(gate.history) == gate.steps == 2 for gate in gates)

    any_split()


def test_any_split_gives_the_verdict_of_the_whole() -> None:
    hold()


# --- wrong gates, one idea each -----------------------------------------------------------------------------


class _ForgetsTheReset(Gate):
    def _begin(self) -> None:
        if not hasattr(self, "_seen"):
            super()._begin()


class _DropsTheSecond(Gate):
    def update(self, *arguments: Any, **named: Any) -> Gate:
        self._calls = getattr(self, "_calls", 0) + 1
        return self if self._calls % 3 == 2 else super().update(*arguments, **named)


class _ReplacesTheBatch(Gate):
    def update(self, *arguments: Any, **named: Any) -> Gate:
        self._seen = loop._joined([], self.rules)
        return super().update(*arguments, **named)


class _LooksAtFirstRows(Gate):
    def update(self, rollout: torch.Tensor, *arguments: Any, **named: Any) -> Gate:
        return super().update(rollout[:1], *(x[:1] for x in arguments), **named)


def _of(kind: type[Gate]) -> Callable[[dict[str, Any]], Gate]:
    return lambda rules: kind(on_failure="record", **rules)


def _gathers(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[dict[str, Any]], Gate]:
    return lambda rules: (globals().__setitem__("GATHER", change), make(rules))[1]


WRONG: dict[str, Callable[[dict[str, Any]], Gate]] = {
    "forgets to begin anew": _of(_ForgetsTheReset),
    "drops a micro-batch": _of(_DropsTheSecond),
    "keeps the last micro-batch": _of(_ReplacesTheBatch),
    "looks at first rows": _of(_LooksAtFirstRows),
    "rank 0 alone": _gathers(lambda messages: messages[:1]),
    "the last rank alone": _gathers(lambda messages: messages[-1:]),
    "the last rank is lost": _gathers(lambda messages: messages[:-1] or messages),
    "ranks in another order": _gathers(lambda messages: messages[::-1]),
    "a rank twice": _gathers(lambda messages: [*messages, messages[0]]),
    "the worst rank alone": _gathers(lambda messages: [max(messages, key=_mismatches)]),
    "the best rank alone": _gathers(lambda messages: [min(messages, key=_mismatches)]),
}


def _mismatches(message: bytes) -> int:
    return loop._decode(message)[1].state.compute().logprobs_mismatch_count


@pytest.fixture
def _gather_again() -> Iterator[None]:
    before = GATHER
    yield
    globals()["GATHER"] = before


@pytest.mark.usefixtures("_gather_again")
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_loop_is_killed(wrong: Callable[[dict[str, Any]], Gate]) -> None:
    with pytest.raises(AssertionError):
        hold(wrong)


# --- real ranks ---------------------------------------------------------------------------------------------

_RANK = """
import datetime, json, sys, torch, torch.distributed as dist
import numerics
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world,
                        timeout=datetime.timedelta(seconds=60))
generator = torch.Generator().manual_seed(7)
q = -4 * torch.rand(6, 5, generator=generator)
p = q.clone()
p[4, 2] = torch.nextafter(p[4, 2], torch.tensor(0.0))
mask = torch.rand(6, 5, generator=generator) > 0.2
mask[4, 2] = True
shard = [slice(0, 3), slice(3, 3), slice(3, 6)][rank]
gate = numerics.Gate(on_failure="record")
said = []
for allow, trainer in ((0, q.clone()), (0, p), (1, p)):  # the third step: other rules on one rank
    if allow and rank == 1:
        gate.rules = numerics.tools.gate.Rules(allow=1)
    for row in range(shard.start, shard.stop):
        gate.update(q[row:row + 1], trainer[row:row + 1], mask[row:row + 1], token_ids=torch.arange(5)[None] + 100)
    try:
        said.append(gate.step().as_dict())
    except ValueError as error:
        said.append(str(error))
print(json.dumps(said))
dist.barrier()
dist.destroy_process_group()
"""


def test_three_real_ranks_one_of_them_empty(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", _RANK, str(rank), "3", str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        said = [process.communicate(timeout=150) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0, 0], said
    steps = [json.loads(out.splitlines()[-1]) for out, _ in said]
    assert steps[0][:2] == steps[1][:2] == steps[2][:2]
    first, second, third = steps[0]
    assert first["passed"]
    assert (second["passed"], second["count"]) == (False, 1)
    (token,) = second["first"]
    assert (token["rank"], token["micro_batch"], token["row"], token["position"]) == (2, 1, [0], 2)
    assert (token["token_id"], token["ulps"]) == (102, 1)
    assert second["mismatch"]["valid_count"] == first["mismatch"]["valid_count"] > 20
    assert "rank 1 gates by other rules than rank 0" in third
    assert all("gates by other rules" in rank[2] for rank in steps)


# --- one process --------------------------------------------------------------------------------------------

Q = torch.tensor([[-0.5, -1.25, -3.0], [-0.1, -2.0, -0.7]])


def test_on_failure() -> None:
    gate = Gate()
    gate.update(Q, Q + 1)
    with pytest.raises(GateFailure, match=r"step 0: numerics gate: FAILED: 6 of 6 tokens differ") as caught:
        gate.step()
    assert caught.value.verdict is gate.history[-1]
    assert gate.update(Q, Q.clone()).step().passed  # nothing is left of the failed step
    with pytest.warns(UserWarning, match="step 0: numerics gate: FAILED"):
        Gate(on_failure="warn").update(Q, Q + 1).step()
    assert not Gate(on_failure="record").update(Q, Q + 1).step().passed


def test_a_step_without_tokens_fails() -> None:
    with pytest.raises(GateFailure, match="nothing_compared"):
        Gate().step()
    with pytest.raises(GateFailure, match="all_masked"):
        Gate().update(Q, Q.clone(), torch.zeros_like(Q)).step()


def test_one_vacuous_micro_batch_fails_the_step() -> None:
    gate = Gate(on_failure="record")
    gate.update(Q, Q.clone()).update(Q, Q).update(Q, Q)
    (reason,) = gate.step().reasons
    assert reason.code == "shared_storage"
    assert reason.message.endswith("(rank 0, micro-batch 1)")
    gate.update(Q, Q.clone()).update(Q, None)
    assert [r.code for r in gate.step().reasons] == ["bypass"]
    gate.update(Q, Q.clone(), declared=Declared(rollout_mode="raw", trainer_mode="processed"))
    assert [r.code for r in gate.step().reasons] == ["mode"]


def test_an_update_that_raises_changes_nothing() -> None:
    gate = Gate().update(Q, Q.clone())
    with pytest.raises(ValueError, match="shape"):
        gate.update(Q, Q[:1])
    assert gate.step().mismatch.valid_count == 6


def test_history_and_tokens_are_bounded() -> None:
    gate = Gate(on_failure="record", history=3)
    for step in range(7):
        for _ in range(5):
            gate.update(Q, Q + 1 + step)
        gate.step()
    assert (len(gate.history), gate.steps) == (3, 7)
    assert all(len(v.first) == len(v.worst) == KEPT for v in gate.history)
    assert [t.micro_batch for t in gate.history[-1].first] == [0] * 6 + [1] * 2
    assert [round(v.mismatch.logprobs_diff_max) for v in gate.history] == [5, 6, 7]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_failure": "ignore"}, "on_failure is 'ignore'; it must be one of 'raise', 'warn', 'record'"),
        ({"history": 0}, "history is 0; it must be a number of steps"),
        ({"history": True}, "history is True"),
        ({"allow": -1}, "allow is -1"),
        ({"alow": 1}, "alow"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Gate(**options)


# --- frameworks: stand-ins with the shape that their source shows -------------------------------------------


def test_a_trl_trainer_is_gated_and_let_go() -> None:
    class Trainer:
        def _generate_and_score_completions(self, inputs: torch.Tensor) -> dict[str, Any]:
            ids = torch.ones_like(Q, dtype=torch.int64)
            return {
                "completion_ids": ids,
                "completion_mask": ids,
                "sampling_per_token_logps": Q,
                "old_per_token_logps": inputs,
            }

    trainer, gate = Trainer(), Gate(on_failure="record")
    detach = attach_trl(trainer, gate)
    batch = trainer._generate_and_score_completions(Q.clone())
    assert batch["sampling_per_token_logps"] is Q
    trainer._generate_and_score_completions(Q + 1)
    assert [v.passed for v in gate.history] == [True, False]
    assert gate.history[-1].first[0].token_id == 1
    detach()
    trainer._generate_and_score_completions(Q + 1)
    assert gate.steps == 2


def test_a_trl_batch_without_old_logps_is_a_bypass() -> None:
    gate = Gate(on_failure="record")
    trainer = types.SimpleNamespace(
        _generate_and_score_completions=lambda: {"sampling_per_token_logps": Q, "completion_mask": torch.ones_like(Q)}
    )
    attach_trl(trainer, gate)
    trainer._generate_and_score_completions()
    assert [r.code for r in gate.history[-1].reasons] == ["bypass"]


@pytest.mark.parametrize("wrap", [lambda batch: batch, lambda batch: types.SimpleNamespace(batch=batch)])
def test_a_verl_batch(wrap: Callable[[Any], Any]) -> None:
    gate, mask = Gate(on_failure="record"), torch.ones_like(Q)
    batch = {"rollout_log_probs": Q, "old_log_probs": Q + 1, "response_mask": mask}
    metrics = verl_metrics(gate, wrap(batch))
    assert metrics["gate/passed"] == 0.0
    assert metrics["gate/mismatch_count"] == metrics["gate/valid_count"] == 6.0
    assert verl_metrics(gate, wrap(batch | {"log_probs_for_metrics": Q.clone()}))["gate/passed"] == 1.0
    verl_metrics(gate, wrap(batch | {"old_log_probs": batch["rollout_log_probs"]}))  # verl's bypass mode
    assert [r.code for r in gate.history[-1].reasons] == ["shared_storage"]


def test_a_tensordict_batch() -> None:
    from tensordict import TensorDict

    mask = torch.ones_like(Q)
    batch = TensorDict({"rollout_log_probs": Q, "old_log_probs": Q.clone(), "response_mask": mask}, batch_size=[2])
    assert verl_metrics(Gate(), types.SimpleNamespace(batch=batch))["gate/passed"] == 1.0


def test_a_lightning_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    home = types.ModuleType("lightning.pytorch.callbacks")
    home.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    logged: list[dict[str, float]] = []
    gate = Gate(on_failure="record")
    callback = lightning_callback(gate, BatchKeys(rollout="q", trainer=("p",), mask=None))
    assert isinstance(callback, home.Callback)
    module = types.SimpleNamespace(log_dict=logged.append)
    callback.on_train_batch_end(None, module, {"q": Q, "p": Q.clone()}, None, 0)
    callback.on_train_batch_end(None, module, {"q": Q, "p": Q + 1}, None, 1)
    assert [entry["gate/passed"] for entry in logged] == [1.0, 0.0]


def test_a_batch_without_rollout_log_probs_is_named() -> None:
    with pytest.raises(KeyError, match="the batch has no 'q', which the gate reads; it has p"):
        record(Gate(), {"p": Q}, BatchKeys(rollout="q", trainer=("p",), mask=None))
    with pytest.raises(KeyError, match="the batch has no 'm'"):
        record(Gate(), {"q": Q, "p": Q}, BatchKeys(rollout="q", trainer=("p",), mask="m"))
