"""What an implementation gives on this machine: the bits and the error of every case."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from numerics.formats import FORMATS
from numerics.suite.contracts import BadResult, Raised
from numerics.suite.implementation import Implementation
from numerics.suite.measure import Measurement, severities
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import NotProvided
from numerics.suite.runner import Check
from numerics.tools.guard.cases import ACCURACY, cases

__all__ = ["Key", "Line", "Observation", "Seen", "key_here", "observe"]

_SHOWN = 8  #: numbers that a line shows with all their bits; more are one digest
_CODES = {"float64": ("<d", "<Q", 16), "float32": ("<f", "<I", 8)}


@dataclass(frozen=True, kw_only=True, order=True)
class Key:
    """What bits may depend on, if an implementation does not declare ``portable_bits``."""

    device: str
    dtype: str
    isa: str  #: instruction set that torch uses, such as AVX512; a CUDA device's compute capability
    torch: str

    def __str__(self) -> str:
        return f"{self.device} {self.dtype} {self.isa} torch-{self.torch}"

    @classmethod
    def of(cls, text: str) -> Key:
        """The key that ``str`` wrote; `ValueError` for anything else."""
        words = text.split(" ")
        if len(words) != 4 or not words[3].startswith("torch-") or words[1] not in FORMATS:
            raise ValueError(f"{text!r} is no key such as 'cpu float32 AVX512 torch-2.13.0'")
        return cls(device=words[0], dtype=words[1], isa=words[2], torch=words[3].removeprefix("torch-"))


@dataclass(frozen=True, kw_only=True)
class Line:
    """One rule on one case: the bits of its numbers (or their digest), and how far off the worst of them are."""

    bits: str
    ulps: float  #: largest error in ULPs of the numbers' format, at the exact value
    share: float  #: largest error / bound, which knows how well the case determines the number


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One rule on one case, now. The errors cost more than the bits: they are found when they are asked for."""

    bits: str
    case: Any
    measurements: Sequence[Measurement] | None  #: None where the implementation raised

    def line(self) -> Line:
        """With the errors."""
        if self.measurements is None:
            return Line(bits=self.bits, ulps=math.inf, share=math.inf)
        worst = max((_ulps(m, i) for m in self.measurements for i in range(m.got.size)), default=0.0)
        share = max((float(x) for m in self.measurements for x in severities(m)), default=0.0)
        return Line(bits=self.bits, ulps=float(f"{worst:.4g}"), share=float(f"{share:.4g}"))


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What an implementation gives under one key, by name, and a digest of the cases."""

    key: Key
    cases: str
    seen: dict[str, Seen]


def key_here(device: str, dtype: str) -> Key:
    """The key of this machine."""
    if device == "cuda":
        major, minor = torch.cuda.get_device_capability()
        isa = f"sm_{major}{minor}"
    else:
        isa = torch.backends.cpu.get_cpu_capability().replace(" ", "-")
    return Key(device=device, dtype=dtype, isa=isa, torch=torch.__version__.partition("+")[0])


def observe(
    implementation: Implementation,
    *,
    device: str,
    dtype: str,
    only: Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Observation:
    """Run the cases of the implementation's contract; only: these names, None for all."""
    seen, digest = dict[str, Seen](), hashlib.sha256()
    for id in ACCURACY[implementation.contract]:
        rule = PROPERTIES[id]
        if rule.requires - implementation.provides or dtype not in rule.dtypes:
            continue
        check = Check(property=rule, implementation=implementation, device=device, dtype=dtype)
        ctx = check.context
        for title, case in cases(rule, check.domain):
            name = f"{id} {title}"
            digest.update(f"{name} {case!r}\n".encode())
            if only is not None and name not in only:
                continue
            progress(name)
            try:
                measured = rule.measure(case, ctx)
            except NotProvided:
                continue
            except (Raised, BadResult) as error:
                what = type(getattr(error, "error", error)).__name__
                seen[name] = Seen(bits=f"raised {what}", case=case, measurements=None)
                continue
            seen[name] = Seen(bits=_all_bits(measured), case=case, measurements=measured)
    return Observation(key=key_here(device, dtype), cases=digest.hexdigest(), seen=seen)


def _all_bits(measurements: Sequence[Measurement]) -> str:
    words = [_bits(float(x), m.format) for m in measurements for x in m.got]
    text = " ".join(words)
    if len(words) <= _SHOWN:
        return text
    return f"{len(words)} numbers, sha256 {hashlib.sha256(text.encode()).hexdigest()[:32]}"


def _bits(value: float, name: str) -> str:
    """Hexadecimal bits of a number of the format; NaN is "nan" whatever its payload, which no rule promises."""
    if math.isnan(value):
        return "nan"
    packing, unpacking, digits = _CODES["float64" if name in ("float64", "truth") else "float32"]
    return f"{struct.unpack(unpacking, struct.pack(packing, value))[0]:0{digits}x}"


_PLAIN = 2.0**-10  #: a radius below so many ULPs moves no figure of four digits by more than its last


def _ulps(m: Measurement, i: int) -> float:
    """|got - exact| of one element in ULPs of its format at the exact value; 0 for equal non-finite values."""
    got, want = float(m.got[i]), float(m.want[i])
    if got == want or (math.isnan(got) and math.isnan(want)):
        if not math.isfinite(got):
            return 0.0
    elif not (math.isfinite(got) and math.isfinite(want)):
        return math.inf
    fmt = FORMATS[m.format if m.format in FORMATS else "float64"]
    ulp = fmt.ulp(fmt.round(want))
    exact = m.exact(i) if m.radius[i] > _PLAIN * ulp else want
    return float(abs(got - exact) / ulp)
