"""Reducing a state over real gloo processes: four ranks, empty shards, NaN, options, a subgroup, a rank that dies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from numerics import MetricState

HERE = Path(__file__).parent

_START = """
import datetime, os, sys, torch, torch.distributed as dist
sys.path.insert(0, {here!r})
from numerics import MetricState
from test_state_basics import batch, state
rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
wait = datetime.timedelta(seconds=float(sys.argv[4]))
dist.init_process_group("gloo", init_method=f"file://{{store}}", rank=rank, world_size=world, timeout=wait)
q, p, mask = batch(5, rows=7)
"""
#: a rank that leaves while another still talks to it makes that one abort
_END = "\ndist.barrier()\ndist.destroy_process_group()\n"
#: uneven; rank 2 has no row
_SHARDS = "mine = [slice(0, 4), slice(4, 5), slice(0, 0), slice(5, 7)][rank]\n"


def run(body: str, tmp_path: Path, world: int, *, wait: float = 60.0) -> list[tuple[int, str, str]]:
    """(exit status, output, errors) of every rank."""
    text = _START.format(here=str(HERE)) + body + _END
    command = [sys.executable, "-W", "ignore", "-c", text]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(world), str(tmp_path / "store"), str(wait)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        said = [process.communicate(timeout=150) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    return [(process.returncode, out, err) for process, (out, err) in zip(ranks, said, strict=True)]


def states(found: list[tuple[int, str, str]]) -> list[str]:
    """The last line that each rank printed; they must all have ended well."""
    assert [code for code, _, _ in found] == [0] * len(found), found
    return [out.strip().splitlines()[-1] for _, out, _ in found]


def whole(tmp_path: Path, change: str = "", rows: str = "slice(None)") -> MetricState:
    """The state of one process that sees all the rows."""
    body = f"{change}\nmine = {rows}\nprint(state().update(q[mine], p[mine], mask[mine]).to_json())"
    alone = tmp_path / "alone"
    alone.mkdir()
    (text,) = states(run(body, alone, 1))
    return MetricState.from_json(text)


_SPOIL = "p[4, 0], mask[4, 0] = float('nan'), True\n"


def test_four_ranks_uneven_and_empty_give_the_bits_of_the_whole(tmp_path: Path) -> None:
    said = states(run(_SHARDS + "print(state().update(q[mine], p[mine], mask[mine]).reduce().to_json())", tmp_path, 4))
    assert len(set(said)) == 1
    assert MetricState.from_json(said[0]).compute() == whole(tmp_path).compute()


def test_a_rank_with_nan_shows_on_every_rank(tmp_path: Path) -> None:
    body = _SHARDS + _SPOIL + "print(state().update(q[mine], p[mine], mask[mine]).reduce().to_json())"
    said = states(run(body, tmp_path, 4))
    assert len(set(said)) == 1
    got, want = MetricState.from_json(said[0]).compute(), whole(tmp_path, _SPOIL).compute()
    assert repr(got) == repr(want)
    assert got["nonfinite_count"] == 1


def test_other_options_are_an_error_on_every_rank(tmp_path: Path) -> None:
    body = """
try:
    MetricState(epsilon=0.5 if rank == 1 else 1e-6).update(q, p, mask).reduce()
except ValueError as error:
    print(error)
"""
    said = states(run(body, tmp_path, 2))
    assert said == ["rank 1 has other options than rank 0: epsilon is 1e-06 here and 0.5 there"] * 2


def test_a_subgroup_reduces_among_itself(tmp_path: Path) -> None:
    body = """
pair = dist.new_group([0, 1])
mine = state().update(q[rank : rank + 1], p[rank : rank + 1], mask[rank : rank + 1])
print(mine.reduce(pair).to_json() if rank < 2 else "outside")
"""
    said = states(run(body, tmp_path, 3))
    assert said[0] == said[1]
    assert said[2] == "outside"
    want = whole(tmp_path, rows="slice(0, 2)")
    assert MetricState.from_json(said[0]).compute() == want.compute()


@pytest.mark.parametrize("where", ["before", "inside"])
def test_a_rank_that_dies_is_an_error_not_a_hang(tmp_path: Path, where: str) -> None:
    body = f"""
mine = state().update(q, p, mask)
if rank == 1 and {where == "before"}:
    os._exit(7)
if rank == 1:  # takes part in the lengths, dies before the messages
    dist.all_gather([torch.zeros(1, dtype=torch.int64)] * 2, torch.tensor([10]))
    os._exit(7)
try:
    mine.reduce()
except RuntimeError as error:
    print("error:", type(error).__name__, flush=True)
    os._exit(3)
"""
    found = run(body, tmp_path, 2, wait=5.0)
    assert found[1][0] == 7
    assert found[0][0] == 3, found
    assert "error:" in found[0][1]
