"""How fast the CPU kernels are, and how far off: ``python tests/kernel_speed.py [--rows N]``.

One thread, processor time of the process, all forms of a table in turn in one process, five rounds; "x" is the median
of the per-round ratios to verl's form (its ``logprobs_from_logits_v2``: ``x_i - logsumexp(x)``, row by row, written
here again), "of read" to ``torch.sum`` over the same buffer. Errors are in float32 ULPs from the exact value (mpmath).
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", NUMBA_NUM_THREADS="1")

import statistics
import time
from collections.abc import Callable

import click
import mpmath
import torch

from numerics.formats import FORMATS
from numerics.kernels import cpu


def verl_form(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    chosen = x.gather(-1, ids[:, None])[:, 0]
    return chosen - torch.stack([torch.logsumexp(row, dim=-1) for row in x])


def log_softmax(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x.float(), -1).gather(-1, ids[:, None])[:, 0]


@click.command()
@click.option("--rows", default=256, show_default=True, help="Rows of logits.")
@click.option("--width", "widths", multiple=True, type=int, default=(32_000, 128_256), show_default=True)
def main(rows: int, widths: tuple[int, ...]) -> None:
    """Print the tables of docs/bits.md."""
    torch.set_num_threads(1)
    click.echo(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, one thread")
    for width in widths:
        for dtype in (torch.float32, torch.bfloat16):
            _speed(rows, width, dtype)
    _errors()


def _speed(rows: int, width: int, dtype: torch.dtype) -> None:
    x = (3 * torch.randn(rows, width)).to(dtype)
    ids = torch.randint(0, width, (rows,))
    words = x.view(torch.float32) if dtype == torch.float32 else x.view(torch.int16)
    forms: dict[str, Callable[[], object]] = {
        "verl's form": lambda: verl_form(x, ids),
        "log_softmax, gather": lambda: log_softmax(x, ids),
        "cpu kernel": lambda: cpu.token_logprobs(x, ids),
        "cpu kernel, T = 0.7": lambda: cpu.token_logprobs(x, ids, temperature=0.7),
        "cpu kernel, entropy": lambda: cpu.entropy(x),
        "read": lambda: words.view(torch.float32).sum(),
    }
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for form in forms.values():
        form()
    for _ in range(5):
        for name, form in forms.items():
            started = time.process_time()
            form()
            taken[name].append(time.process_time() - started)
    click.echo(f"\n[{rows}, {width}] {str(dtype).removeprefix('torch.')}\n| form | x verl's | of read |\n|---|---|---|")
    for name, own in taken.items():
        faster, share = (
            statistics.median(a / b for a, b in zip(taken[other], own, strict=True))
            for other in ("verl's form", "read")
        )
        click.echo(f"| {name} | {faster:.2f} | {share:.0%} |")


def _errors() -> None:
    """By size of the log-prob: improbable tokens, and ever more certain ones."""
    click.echo("\n| log-prob | kernel: worst, correctly rounded | log_softmax: worst |\n|---|---|---|")
    fmt = FORMATS["float32"]
    generator = torch.Generator().manual_seed(0)
    for boost in (0.0, 12.0, 16.0, 20.0, 24.0, 30.0, 50.0, 80.0):
        x = 2 * torch.randn(24, 2000, generator=generator)
        ids = torch.randint(0, 2000, (24,), generator=generator)
        x[torch.arange(24), ids] += boost
        kernel, torchs = cpu.token_logprobs(x, ids), log_softmax(x, ids)
        worst, other, right, sizes = 0.0, 0.0, 0, []
        for row, i, got, theirs in zip(x.tolist(), ids.tolist(), kernel.tolist(), torchs.tolist(), strict=True):
            with mpmath.workdps(60):
                exact = -mpmath.log1p(
                    mpmath.fsum(mpmath.exp(mpmath.mpf(v) - row[i]) for k, v in enumerate(row) if k != i)
                )
                ulp = fmt.ulp(fmt.round(float(exact)))
                worst, other = max(worst, float(abs(got - exact) / ulp)), max(other, float(abs(theirs - exact) / ulp))
                right += got == fmt.round(float(exact))
                sizes.append(-float(exact))
        click.echo(f"| -{statistics.median(sizes):.1e} | {worst:.2f}, {right / 24:.0%} | {other:.3g} |")


if __name__ == "__main__":
    main()
