"""The CPU kernels have the bits of their specification, everywhere; wrong definitions are told apart; how they err."""

from __future__ import annotations

import hashlib
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import numerics
from numerics.formats import FORMATS
from numerics.kernels import cpu, specification
from numerics.kernels.definition import CHUNK, LANES, POLYNOMIAL

ROOT = Path(__file__).parent.parent
F = np.float32
WIDTHS = (1, 2, 7, LANES - 1, LANES, LANES + 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK - 5, 32_769)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def logits(width: int, seed: int, rows: int = 6) -> torch.Tensor:
    """Ordinary, certain, tied, removed, far apart and subnormal rows, float32 [rows, width]."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.randn(rows, width, generator=generator)
    if width > 2:
        x[1, seed % width] = 60.0
        x[2, ::2] = -math.inf
        x[2, 1] = 1.0
        x[3] = x[3].round()  # ties, at the maximum too
        x[4] *= 30.0
        x[5] = torch.where(x[5] > 0, x[5] * 1e-39, x[5])
    return x


def specified(
    x: torch.Tensor, ids: torch.Tensor, temperature: float | torch.Tensor = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies by the specification."""
    t = torch.as_tensor(temperature, dtype=torch.float64).to(torch.float32).expand(ids.shape)
    found = specification.rows(x.float().numpy(), ids.numpy(), t.numpy())
    return torch.from_numpy(found[0]), torch.from_numpy(found[1])


def same(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Bits, all NaNs alike."""
    return not bool(numerics.formats.bits_differ(got, want).any())


def both(x: torch.Tensor, ids: torch.Tensor, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return cpu.token_logprobs(x, ids, **options), cpu.entropy(x, **options)


# --- bit for bit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_bits_of_the_specification(width: int, dtype: torch.dtype) -> None:
    x = logits(width, width).to(dtype)
    ids = torch.randint(0, width, (len(x),), generator=torch.Generator().manual_seed(1))
    for temperature in (1.0, 0.7, torch.tensor([0.5, 1.0, 3.0, 0.7, 1e-3, 7.0])):
        for got, want in zip(both(x, ids, temperature=temperature), specified(x, ids, temperature), strict=True):
            assert same(got, want), (temperature, got, want)


@pytest.mark.parametrize("width", [151_936])
def test_the_bits_of_a_real_vocabulary(width: int) -> None:
    x = logits(width, 3, rows=6)[[0, 1]]
    ids = torch.tensor([5, 3 % width])
    for got, want in zip(both(x, ids), specified(x, ids), strict=True):
        assert same(got, want)


_NUMBERS = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-30, 30, width=32),
    st.sampled_from([0.0, -0.0, -math.inf, 3e38, -3e38, 1e-45, 88.0, -104.0]),
)


@given(st.data())
@settings(max_examples=150, deadline=None, database=None, derandomize=True)
def test_any_finite_logits_and_temperature(data: st.DataObject) -> None:
    values = data.draw(st.lists(_NUMBERS, min_size=1, max_size=40))
    temperature = data.draw(st.one_of(st.just(1.0), st.floats(2.0**-20, 2.0**20, width=32)))
    x = torch.tensor([values], dtype=torch.float32)
    ids = torch.tensor([data.draw(st.integers(0, len(values) - 1))])
    got, want = both(x, ids, temperature=temperature), specified(x, ids, temperature)
    assert same(got[0], want[0])
    assert same(got[1], want[1])
    if x.isfinite().any():
        assert not got[0].isnan().any()


def test_nan_infinities_and_nothing() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[0.0, nan, 1.0], [0.0, inf, 1.0], [-inf, -inf, -inf], [0.0, -inf, 1.0], [nan, inf, -inf]])
    ids = torch.tensor([0, 0, 0, 1, 2])
    lp, h = both(x, ids)
    assert lp.isnan().tolist() == h.isnan().tolist() == [True, True, True, False, True]
    assert lp[3] == -inf
    assert same(lp, specified(x, ids)[0])
    padded = torch.nn.functional.pad(x, (0, 5000), value=-inf)  # another chunk without a token
    assert same(cpu.token_logprobs(padded, ids), lp)


def test_batch_position_strides_and_threads() -> None:
    x = logits(9_001, 5, rows=40)
    ids = torch.arange(40) * 100
    whole = both(x, ids, temperature=0.7)
    before = numba.get_num_threads()
    try:
        for threads in (1, min(2, before), before):
            numba.set_num_threads(threads)
            for got, want in zip(both(x, ids, temperature=0.7), whole, strict=True):
                assert same(got, want)
    finally:
        numba.set_num_threads(before)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert same(cpu.token_logprobs(x[order], ids[order], temperature=0.7), whole[0][order])
    assert same(cpu.token_logprobs(x[7:8], ids[7:8], temperature=0.7), whole[0][7:8])
    turned = x.t().contiguous().t()
    assert same(cpu.token_logprobs(turned, ids, temperature=0.7), whole[0])
    assert same(cpu.token_logprobs(x.view(4, 10, -1), ids.view(4, 10), temperature=0.7), whole[0].view(4, 10))


def test_masked_rows_are_not_read() -> None:
    x, ids = logits(300, 6), torch.zeros(6, dtype=torch.int64)
    mask = torch.tensor([1, 0, 1, 1, 0, 1])
    want = cpu.token_logprobs(x, ids)
    spoiled = x.clone()
    spoiled[mask == 0] = math.nan
    got = cpu.token_logprobs(spoiled, torch.where(mask == 1, ids, -100), mask=mask)
    assert same(got, torch.where(mask == 1, want, 0.0))


_DIGEST = """
import sys; sys.path.insert(0, {tests!r})
import hashlib, torch
from numerics.kernels import cpu
from test_kernels import digest_of
print(digest_of())
"""


def digest_of() -> str:
    """Of the bits of a few calls."""
    digest = hashlib.sha256()
    for width in (129, 4_097, 32_769):
        for dtype in DTYPES[:2]:
            x = logits(width, width).to(dtype)
            for found in both(x, torch.arange(6) % width, temperature=0.7):
                digest.update(found.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize(
    ("name", "features"),
    [("haswell", "+avx2,+fma,-avx512f"), ("x86-64", "")],
    ids=["AVX2", "SSE2"],
)
def test_the_same_bits_on_other_instruction_sets(name: str, features: str, tmp_path: Path) -> None:
    env = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _DIGEST.format(tests=str(ROOT / "tests"))],
        capture_output=True,
        text=True,
        check=True,
        env=env | {"PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == digest_of()


def test_the_compiled_code_is_that_of_these_sources() -> None:
    """numba's cache looks at a function's cells: a change of another file of the kernels must show there."""
    assert cpu._source() in [cell.cell_contents for cell in cpu._rows.py_func.__closure__]


# --- wrong definitions, one idea each -----------------------------------------------------------------------


def _twice_rounded(a: Any, b: Any, c: Any) -> Any:
    return (np.asarray(a, np.float64) * np.asarray(b, np.float64) + np.asarray(c, np.float64)).astype(F)


def _not_fused(a: Any, b: Any, c: Any) -> Any:
    return np.asarray(F(1) * a * b + c, F)


def _left_to_right(lanes: Any) -> Any:
    total = lanes[0]
    for lane in lanes[1:]:
        total = F(total + lane)
    return total


_EXP32, _MERGED, _CHUNK = specification.exp32, specification._merged, specification._chunk


def _without_low_part(y: Any, m: Any) -> Any:
    e, gap = _EXP32((y - m).astype(F), F(0))
    return np.where(y == m, F(0), e), gap


def _flushed(y: Any, m: Any) -> Any:
    e, gap = _EXP32(y, m)
    return np.where(y - m < -87.0, F(0), e), gap


def _leaks(y: Any, m: Any) -> Any:
    e, gap = _EXP32(np.maximum(y, m - F(87)), m)
    return e, gap


def _maximum_added(y: Any) -> Any:
    m, n, s, w = _CHUNK(y)
    return (m, 0, F(s + F(n) * F(2.0**64)), w) if n else (m, n, s, w)


def _float32_merge(chunks: Any) -> Any:
    top, count, rest, gaps = _MERGED(chunks)
    return top, count, float(F(rest)), gaps


def _tail_dropped(y: Any) -> Any:
    return _CHUNK(y[: len(y) // LANES * LANES] if len(y) > LANES else y)


WRONG: dict[str, tuple[str, Any]] = {
    "64 lanes": ("LANES", 64),
    "256 lanes": ("LANES", 256),
    "chunks of 2048": ("CHUNK", 2048),
    "chunks of 8192": ("CHUNK", 8192),
    "lanes added from left to right": ("_tree", _left_to_right),
    "an exponential of degree 5": ("POLYNOMIAL", POLYNOMIAL[1:]),
    "another last coefficient": ("POLYNOMIAL", (*POLYNOMIAL[:-2], np.nextafter(POLYNOMIAL[-2], F(1)), POLYNOMIAL[-1])),
    "log2(e) in one number": ("LOG2E_LOW", F(0)),
    "a rounded difference": ("exp32", _without_low_part),
    "multiply-adds not fused": ("fma32", _not_fused),
    "terms below e^-87 flushed": ("exp32", _flushed),
    "terms clamped at e^-87": ("exp32", _leaks),
    "the maximum is added, not counted": ("_chunk", _maximum_added),
    "a sum in float32 across chunks": ("_merged", _float32_merge),
    "the last columns are dropped": ("_chunk", _tail_dropped),
    "log for log1p": ("log1p64", lambda x: specification.log64(1.0 + x)),
    "exp of the C library": ("exp64", lambda x: float(F(math.exp(x)))),
}


def _hold() -> None:
    """The bits of the specification, on rows that show what a careless form loses."""
    for width in (LANES + 1, 2 * CHUNK + 77):
        generator = torch.Generator().manual_seed(8)
        x = logits(width, width, rows=24)
        x[6] = -20.0 - torch.rand(width, generator=generator)
        x[7] = -95.0
        x[8] = -60.0 - 30 * torch.rand(width, generator=generator)
        x[6:8, 3], x[8, 3] = 0.0, 0.3  # nearly certain
        ids = torch.full((24,), 3)
        for temperature in (1.0, 0.7):
            wanted = specified(x, ids, temperature)
            for got, want in zip(both(x, ids, temperature=temperature), wanted, strict=True):
                assert same(got, want)


def test_the_kernels_hold() -> None:
    _hold()


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_definition_is_told_apart(wrong: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specification, *wrong)
    with pytest.raises(AssertionError):
        _hold()


# --- accuracy -----------------------------------------------------------------------------------------------


def _rounds_once(fma: Callable[..., Any]) -> None:
    chance = np.random.default_rng(0)
    # just below the middle of two float32, where a sum in float64 lands on the middle
    triples = [(F(2.0**-12 * (1 + 2.0**-16)), F(2.0**-12 * (1 - 2.0**-16)), F(1 + 2.0**-23))]
    for _ in range(3_000):
        a, b, c = (F(chance.standard_normal() * 2.0 ** int(chance.integers(-70, 50))) for _ in range(3))
        triples.append((a, b, F(-float(a) * float(b)) if chance.random() < 0.4 else c))  # cancels to its last bits
    for a, b, c in triples:
        got = fma(np.array([a]), np.array([b]), np.array([c]))[0]
        assert float(got) == FORMATS["float32"].round(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def test_the_fused_multiply_add_rounds_once() -> None:
    _rounds_once(specification.fma32)


@pytest.mark.parametrize("wrong", [_twice_rounded, _not_fused])
def test_a_wrong_multiply_add_is_told_apart(wrong: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError):
        _rounds_once(wrong)


@pytest.mark.parametrize(
    ("function", "exact", "draw", "allowed"),
    [
        (specification.exp64, mpmath.exp, lambda c: -700 * c.random(), 2.0),
        (specification.log64, mpmath.log, lambda c: 1 + 10 ** c.uniform(-3, 6), 4.0),
        (specification.log1p64, mpmath.log1p, lambda c: 10 ** c.uniform(-300, 5), 4.0),
    ],
    ids=["exp64", "log64", "log1p64"],
)
def test_exponential_and_logarithms(
    function: Callable[[float], float], exact: Any, draw: Callable[[random.Random], float], allowed: float
) -> None:
    """Within so many units of 2^-53, relatively; float64 rounds once more into float32, 2^29 times coarser."""
    chance = random.Random(0)
    with mpmath.workdps(40):
        worst = max(
            abs(mpmath.mpf(function(x)) / exact(mpmath.mpf(x)) - 1) for x in (draw(chance) for _ in range(4_000))
        )
    assert worst * 2**53 <= allowed


def test_the_polynomial() -> None:
    with mpmath.workdps(40):
        points = [mpmath.mpf(k) / 1000 for k in range(-500, 501)]
        coefficients = [mpmath.mpf(float(c)) for c in POLYNOMIAL]
        worst = max(abs(mpmath.polyval(coefficients, f) / mpmath.mpf(2) ** f - 1) for f in points)
    assert worst < 3.7e-9


def test_the_exponential_is_within_what_is_declared() -> None:
    """1.5 ulps in `numerics.suite.builtin`: one of the exact result is at least 2^-24 of it."""
    y = (-120 * np.random.default_rng(1).random(4_000)).astype(F)
    m = F(3.7)
    e, _ = specification.exp32(y, m)
    with mpmath.workdps(40):
        worst = max(
            abs(mpmath.mpf(float(v)) / 2**64 / mpmath.exp(mpmath.mpf(float(a)) - mpmath.mpf(float(m))) - 1)
            for a, v in zip(y, e, strict=True)
        )
    assert worst * 2**24 <= 1.5


def test_confident_tokens_keep_their_digits() -> None:
    """ULPs from the exact value at log-probs from -1e-1 to -1e-38: what a clamp or an added maximum loses."""
    for low in range(-2, -88, -5):
        x = torch.full((1, 1000), float(low)) + 0.001 * torch.arange(1000)
        x[0, 0] = 0.25
        lp = cpu.token_logprobs(x, torch.tensor([0]))[0].item()
        with mpmath.workdps(60):
            others = mpmath.fsum(mpmath.exp(mpmath.mpf(float(v)) - mpmath.mpf(0.25)) for v in x[0, 1:])
            exact = -mpmath.log1p(others)
            ulp = FORMATS["float32"].ulp(FORMATS["float32"].round(float(exact)))
            assert abs(mpmath.mpf(lp) - exact) / ulp <= 4, low


# --- dispatch -----------------------------------------------------------------------------------------------


def test_backends() -> None:
    assert numerics.backends() == {"reference": "available", "cpu": "available"}
    x, ids = logits(50, 0), torch.zeros(6, dtype=torch.int64)
    assert same(numerics.token_logprobs(x, ids, backend="cpu"), cpu.token_logprobs(x, ids))
    assert same(numerics.entropy(x, backend="cpu", temperature=0.7), cpu.entropy(x, temperature=0.7))
    raw, cold = numerics.token_logprobs_pair(x, ids, temperature=0.7, backend="cpu")
    assert same(raw, cpu.token_logprobs(x, ids))
    assert same(cold, cpu.token_logprobs(x, ids, temperature=0.7))


def test_auto_is_the_reference_unless_the_environment_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    x, ids = logits(50, 0), torch.zeros(6, dtype=torch.int64)
    asked: list[str] = []
    monkeypatch.setattr(cpu, "token_logprobs", lambda *a, **k: asked.append("cpu"))
    numerics.token_logprobs(x, ids)
    assert asked == []
    monkeypatch.setenv("NUMERICS_BACKEND", "cpu")
    numerics.token_logprobs(x, ids)
    assert asked == ["cpu"]
    assert numerics.mismatch(x[0], x[0].clone()).valid == 1  # the kernels have no mismatch: auto is the reference
    monkeypatch.setenv("NUMERICS_BACKEND", "gpu")
    with pytest.raises(ValueError, match="NUMERICS_BACKEND is 'gpu'; it must be one of auto, reference, cpu"):
        numerics.token_logprobs(x, ids)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, i: numerics.token_logprobs(x, i, backend="cuda"), "backend is 'cuda'; it must be one of auto"),
        (lambda x, i: numerics.token_logprobs(x, i, backend="cpu", top_k=3), "takes no top_k; use backend='reference'"),
        (lambda x, i: numerics.mismatch(x, x, backend="cpu"), "'cpu', which has no mismatch; use backend='reference'"),
        (lambda x, i: numerics.token_logprobs(x.double(), i, backend="cpu"), "torch.float64, which the cpu backend"),
        (lambda x, i: numerics.token_logprobs(x.requires_grad_(), i, backend="cpu"), "requires a gradient"),
        (lambda x, i: numerics.token_logprobs(x, i + 50, backend="cpu"), "outside"),
        (lambda x, i: numerics.token_logprobs(x, i[:2], backend="cpu"), "token_ids must have the shape"),
        (lambda x, i: numerics.token_logprobs(x, [0], backend="cpu"), "token_ids must be a torch.Tensor"),
        (lambda x, i: numerics.entropy(x, temperature=0.0, backend="cpu"), "temperature is 0.0"),
        (lambda x, i: numerics.entropy(x[:, :0], backend="cpu"), "at least one token"),
    ],
)
def test_what_a_backend_cannot_do_is_an_error(call: Callable[[torch.Tensor, torch.Tensor], Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        call(logits(50, 0), torch.zeros(6, dtype=torch.int64))


def test_without_numba_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numerics.kernels.cpu")
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.delattr(numerics.kernels, "cpu", raising=False)
    assert "pip install 'rollout-numerics[kernels]'" in numerics.backends()["cpu"]
    with pytest.raises(ValueError, match=r"backend is 'cpu', but .*: pip install 'rollout-numerics\[kernels\]'"):
        numerics.entropy(logits(50, 0), backend="cpu")


def test_a_first_call_says_that_it_compiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Immediately:
        daemon = False

        def __init__(self, after: float, say: Callable[[], None]) -> None:
            assert after == 1.0
            self.start, self.cancel = say, lambda: None

    monkeypatch.setattr(cpu.threading, "Timer", Immediately)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with cpu._patience():
        pass
    assert capsys.readouterr().err == ""  # compiled already
    monkeypatch.setattr(cpu, "_rows", type("Rows", (), {"signatures": ()}))
    with cpu._patience():
        pass
    assert "compiling the cpu kernels" in capsys.readouterr().err
