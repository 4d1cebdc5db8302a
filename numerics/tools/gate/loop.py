"""The gate in a training loop: micro-batches on every rank, one verdict a step."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections import deque
from collections.abc import Iterable
from typing import Any, Literal

import torch

from numerics.reference.collect import gather
from numerics.reference.mismatch import MismatchState
from numerics.tools.gate.judge import Part, decide, examine
from numerics.tools.gate.report import as_text
from numerics.tools.gate.tokens import KEPT, worst_of
from numerics.tools.gate.verdict import Declared, GateFailure, Pattern, Reason, Rules, Token, Verdict

__all__ = ["Gate"]

_ON_FAILURE = ("raise", "warn", "record")


class Gate:
    """A gate that takes micro-batches on every rank and gives one verdict a step, the same on all of them.

    ::

        gate = numerics.Gate()
        for step in range(steps):
            for batch in micro_batches:
                gate.update(batch["rollout_log_probs"], batch["old_log_probs"], batch["response_mask"])
            gate.step()  # reduces over torch.distributed, if it is initialised

    The verdict is the one of all tokens of all ranks together, however they were split. Memory does not grow with
    tokens or steps: figures, at most 16 tokens, and the last ``history`` verdicts are kept.

    on_failure: "raise" `GateFailure` on every rank, "warn", or only "record". history: how many verdicts are kept.
    group: a torch.distributed group, None for the default one. declared: see `Declared`. rules: the fields of `Rules`,
    such as ``allow=0`` and ``bits=True``; they must be the same on every rank.
    """

    def __init__(
        self,
        *,
        on_failure: Literal["raise", "warn", "record"] = "raise",
        history: int = 1000,
        group: Any = None,
        declared: Declared = Declared(),  # noqa: B008  (frozen)
        **rules: Any,
    ) -> None:
        if on_failure not in _ON_FAILURE:
            raise ValueError(f"on_failure is {on_failure!r}; it must be one of {', '.join(map(repr, _ON_FAILURE))}")
        if isinstance(history, bool) or not isinstance(history, int) or history < 1:
            raise ValueError(f"history is {history!r}; it must be a number of steps: an int of at least 1")
        self.rules = Rules(**rules)
        self.declared = declared
        self.on_failure = on_failure
        self.group = group
        self.steps = 0  #: steps judged so far
        self.history: deque[Verdict] = deque(maxlen=history)  #: their verdicts, the latest last
        self._begin()

    def _begin(self) -> None:
        self._seen = _joined([], self.rules)
        self._updates = 0

    def update(
        self,
        rollout: torch.Tensor,
        trainer: torch.Tensor | None,
        mask: torch.Tensor | None = None,
        *,
        token_ids: torch.Tensor | None = None,
        declared: Declared | None = None,
    ) -> Gate:
        """Add one micro-batch; arguments and errors as of `numerics.assert_no_mismatch`. Nothing is sent.

        An error leaves what was seen before as it was. A rank that does not reach `step` keeps the others waiting
        until the group's timeout.
        """
        part = examine(
            rollout, trainer, mask, token_ids=token_ids, rules=self.rules, declared=declared or self.declared
        )
        rank, number = _rank(self.group), self._updates
        self._seen = _joined([self._seen, _placed(part, rank, number)], self.rules)
        self._updates += 1
        return self

    def step(self) -> Verdict:
        """The verdict on everything since the last step, on all ranks; then the gate is empty again.

        Every rank must call it, one without tokens too. Two all_gathers of equal-sized tensors, no pickling.
        `GateFailure` as ``on_failure`` says, `ValueError` on every rank if their rules differ.
        """
        mine, rules = self._seen, self.rules
        self._begin()
        parts = []
        for rank, message in enumerate(gather(_encode(mine, rules), self.group)):
            theirs, part = _decode(message)
            if theirs != rules.as_dict():
                raise ValueError(f"rank {rank} gates by other rules than rank {_rank(self.group)}: {theirs}")
            parts.append(part)
        verdict = decide(_joined(parts, rules), rules, self.declared)
        self.history.append(verdict)
        self.steps += 1
        if not verdict.passed and self.on_failure != "record":
            text = f"step {self.steps - 1}: {as_text(verdict)}"
            if self.on_failure == "raise":
                raise GateFailure(verdict, text)
            warnings.warn(text, stacklevel=2)
        return verdict


def _rank(group: Any) -> int:
    distributed = torch.distributed
    return distributed.get_rank(group) if distributed.is_available() and distributed.is_initialized() else 0


def _placed(part: Part, rank: int, number: int) -> Part:
    """``part`` with the place it comes from in its tokens and reasons."""
    where = f" (rank {rank}, micro-batch {number})"
    return dataclasses.replace(
        part,
        reasons=tuple(dataclasses.replace(r, message=r.message + where) for r in part.reasons),
        patterns=tuple(dataclasses.replace(p, evidence=p.evidence + where) for p in part.patterns),
        first=tuple(dataclasses.replace(t, rank=rank, micro_batch=number) for t in part.first),
        worst=tuple(dataclasses.replace(t, rank=rank, micro_batch=number) for t in part.worst),
    )


def _joined(parts: Iterable[Part], rules: Rules) -> Part:
    """Several parts as one: figures add up, of each reason and pattern the first is kept."""
    state, chosen = MismatchState(compare_dtype=rules.compare_dtype), list(parts)
    for part in chosen:
        state.merge(part.state)
    reasons, patterns = dict[str, Reason](), dict[str, Pattern]()
    for part in chosen:
        reasons = {r.code: r for r in part.reasons} | reasons
        patterns = {p.name: p for p in part.patterns} | patterns
    return Part(
        state=state,
        places=sum(part.places for part in chosen),
        reasons=tuple(reasons.values()),
        first=tuple(t for part in chosen for t in part.first)[:KEPT],
        worst=worst_of(t for part in chosen for t in part.worst),
        patterns=tuple(patterns.values()),
    )


def _encode(part: Part, rules: Rules) -> bytes:
    def tokens(some: tuple[Token, ...]) -> list[Any]:
        return [dataclasses.asdict(t) | {"rollout": t.rollout.hex(), "trainer": t.trainer.hex()} for t in some]

    message = {
        "rules": rules.as_dict(),
        "state": part.state.state_dict(),
        "places": part.places,
        "reasons": [dataclasses.asdict(r) for r in part.reasons],
        "patterns": [dataclasses.asdict(p) for p in part.patterns],
        "first": tokens(part.first),
        "worst": tokens(part.worst),
    }
    return json.dumps(message, allow_nan=False).encode()


def _decode(message: bytes) -> tuple[dict[str, Any], Part]:
    """The rules and the part of a rank."""
    said = json.loads(message)

    def tokens(some: list[dict[str, Any]]) -> tuple[Token, ...]:
        return tuple(
            Token(**t | {"row": tuple(t["row"]), **{n: float.fromhex(t[n]) for n in ("rollout", "trainer")}})
            for t in some
        )

    part = Part(
        state=MismatchState.from_state_dict(said["state"]),
        places=said["places"],
        reasons=tuple(Reason(**r) for r in said["reasons"]),
        patterns=tuple(Pattern(**p) for p in said["patterns"]),
        first=tokens(said["first"]),
        worst=tokens(said["worst"]),
    )
    return said["rules"], part
