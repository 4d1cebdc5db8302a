"""An implementation under test and what it declares about itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any

from numerics.formats import FORMATS

__all__ = ["CAPABILITIES", "CONTRACT_NAMES", "Algorithm", "Implementation", "ResolveError", "resolve"]

CONTRACT_NAMES = (
    "token_logprobs",
    "entropy",
    "mismatch",
    "divergence",
    "correction",
    "full_divergence",
    "ulp_distance",
)

#: What an implementation may declare. The suite holds it to what it declares; what it does not declare makes the
#: properties that need it "not applicable", counted as such. A keyword of the signature counts as declared.
CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "autograd": "the result is differentiable with respect to the logits",
        "batch_invariant": "a row's bits do not depend on which rows stand beside it, on their number or order, on "
        "padding, strides, row-chunk size or thread count",
        "overflow_safe": "finite logits never give NaN or +inf, even where logits / temperature overflows",
        "per_token_temperature": "temperature may be a tensor of the shape of token_ids",
        "nonfinite_gradients": "a -inf log-prob gives gradient 0 in its whole row, a NaN one NaN in its own row only",
        "portable_bits": "the same call gives the same bits on every device, instruction set, number of threads and "
        "version of torch",
        "run_to_run": "the same call gives the same bits",
        "zero_times_inf": "an entropy is finite when some logits are -inf",
        "checks_arguments": "a temperature that is not finite and positive, a mask that is not 0/1, shapes, dtypes "
        "or cuts out of range raise an error instead of giving a value",
        "ieee_counts": "counts are decided on the bits, so that flush-to-zero does not change them",
        "exact_merge": "merging the states of any partition, in any order, gives the same bits",
        "log_space": "effective sample sizes and mean square weights are right where exp(d) itself overflows or "
        "underflows",
        "small_differences": "k3, jsd and the like keep their relative accuracy as d goes to 0",
        "state": "`Implementation.state` makes a mergeable state with update, merge and compute",
        "pair": "`Implementation.pair` returns (raw, processed) from one set of logits",
    }
)


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """What a bound must know of an implementation; the defaults are the loosest honest ones.

    formula:     "shifted" is ``(x_i - max) - log(sum exp(x - max))``; "logsumexp" is ``x_i - logsumexp(x)``, which
                 is off by one rounding of the log-sum-exp, so by u * abs(lse), when logits carry a common offset.
    accumulate:  the format of sums and intermediate values; "compute" is float32 (float64 for float64 input).
    exp_ulps, log_ulps: the largest error of its exp and log, in ulps of the exact result. The defaults cover CUDA's
                 expf and logf, whose documented maxima of 2 and 1 ulps (CUDA C++ Programming Guide, "Mathematical
                 functions") count from the correctly rounded result; glibc and SLEEF's ``_u10`` stay within 1.
    """

    formula: str = "logsumexp"
    accumulate: str = "compute"
    exp_ulps: float = 2.5
    log_ulps: float = 1.5

    def __post_init__(self) -> None:
        if self.formula not in ("shifted", "logsumexp"):
            raise ValueError(f"formula is {self.formula!r}; it must be 'shifted' or 'logsumexp'")
        if self.accumulate != "compute" and self.accumulate not in FORMATS:
            raise ValueError(f"accumulate is {self.accumulate!r}; it must be 'compute' or one of {tuple(FORMATS)}")


@dataclass(frozen=True)
class Implementation:
    """A callable that claims a contract, plus what it declares.

    fn:            called as its contract says (``numerics explain CONTRACT``).
    contract:      one of `CONTRACT_NAMES`.
    dtypes:        input formats it accepts. devices: where it runs.
    capabilities:  names from `CAPABILITIES`; keywords of ``fn`` need not be repeated.
    algorithm:     what its error bound needs to know.
    pair:          the (raw, processed) form of a token_logprobs implementation.
    state:         makes an empty mergeable state of an implementation that returns figures.
    expected_failures: property id -> reason (with an address). Strict: such a property passing is an error.
    variants:      name -> the same kernel with one choice made otherwise (lanes, order, exponential, ...). The
                   regression guard names a change by the variant that gives the recorded bits again.
    """

    fn: Callable[..., Any]
    _: KW_ONLY
    contract: str
    name: str = ""
    dtypes: tuple[str, ...] = tuple(FORMATS)
    devices: tuple[str, ...] = ("cpu", "cuda")
    capabilities: frozenset[str] = frozenset()
    algorithm: Algorithm = Algorithm()
    pair: Callable[..., Any] | None = None
    state: Callable[..., Any] | None = None
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, Callable[..., Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise TypeError(f"fn must be callable, got {type(self.fn).__name__}")
        object.__setattr__(self, "name", self.name or getattr(self.fn, "__name__", type(self.fn).__name__))
        object.__setattr__(self, "capabilities", frozenset(self.capabilities))
        _choose("contract", self.contract, CONTRACT_NAMES)
        for name in self.capabilities:
            _choose("capability", name, CAPABILITIES)
        for name in self.dtypes:
            _choose("dtype", name, FORMATS)

    def with_function(self, fn: Callable[..., Any]) -> Implementation:
        """The same declarations for another function."""
        return replace(self, fn=fn, variants={})

    @property
    def provides(self) -> frozenset[str]:
        """Capabilities and accepted keywords."""
        names = set(self.capabilities)
        if self.pair is not None:
            names.add("pair")
        if self.state is not None:
            names.add("state")
        try:
            parameters = inspect.signature(self.fn).parameters.values()
        except (TypeError, ValueError):  # a builtin without a signature: assume nothing
            return frozenset(names)
        if any(p.kind is p.VAR_KEYWORD for p in parameters):
            names.update(KEYWORDS)
        names.update(p.name for p in parameters if p.name in KEYWORDS)
        return frozenset(names)


#: keywords that properties may pass; taking one is declaring it
KEYWORDS = (
    "temperature",
    "mask",
    "min_p",
    "top_k",
    "top_p",
    "cut_order",
    "ties",
    "real_vocab",
    "compare_dtype",
    "row_ids",
    "epsilon",
    "rule",
    "level",
    "lower",
    "upper",
    "statistic",
    "threshold",
    "normalize",
    "differentiable",
    "overlap_k",
    "chunk_bytes",
)


class ResolveError(ValueError):
    """A name that leads to no implementation; the message says where it went wrong and what is near."""


def resolve(spec: str, *, contract: str | None = None) -> list[Implementation]:
    """The implementations that ``spec`` names.

    ``"pkg.mod:obj"`` or a name of the entry-point group ``numerics.implementations`` or of a built-in. The object
    is an `Implementation`, a list of them, a callable (then ``contract`` is needed), or a function without
    parameters that returns one of these.
    """
    module, colon, attribute = spec.partition(":")
    found: Any
    if colon:
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise ResolveError(
                f"{spec!r}: cannot import {module!r} ({error}); is it installed, or on PYTHONPATH?"
            ) from error
        for part in attribute.split("."):
            if not hasattr(found, part):
                near = get_close_matches(part, dir(found), n=3)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                raise ResolveError(f"{spec!r}: {module} has no {part!r}{hint}")
            found = getattr(found, part)
    else:
        found = _named(spec)
    return _as_implementations(found, spec, contract)


def _named(name: str) -> Any:
    from numerics.suite.builtin import BUILTIN

    known = {point.name: point for point in entry_points(group="numerics.implementations")}
    if name in BUILTIN:
        return list(BUILTIN[name])
    if name in known:
        return known[name].load()
    names = sorted([*BUILTIN, *known])
    near = get_close_matches(name, names, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise ResolveError(f"no implementation named {name!r}; {hint}known: {', '.join(names)}; or give pkg.mod:obj")


def _as_implementations(found: Any, spec: str, contract: str | None) -> list[Implementation]:
    if isinstance(found, Implementation):
        found = [found]
    if isinstance(found, list | tuple) and found and all(isinstance(x, Implementation) for x in found):
        chosen = [x for x in found if contract in (None, x.contract)]
        if not chosen:
            raise ResolveError(f"{spec!r} has no implementation of {contract!r}")
        return chosen
    if not callable(found):
        raise ResolveError(f"{spec!r} is a {type(found).__name__}, neither a callable nor an Implementation")
    if _takes_nothing(found):
        return _as_implementations(found(), f"{spec}()", contract)
    if contract is not None:
        return [Implementation(found, contract=contract, name=spec)]
    raise ResolveError(
        f"{spec!r} is a plain callable: say which contract it claims (--contract, one of {CONTRACT_NAMES})"
    )


def _takes_nothing(found: Callable[..., Any]) -> bool:
    """Whether it can be called without arguments, as a factory is; an implementation needs tensors."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False
    return all(p.default is not p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters) and not any(
        p.kind is p.VAR_POSITIONAL for p in parameters
    )


def _choose(what: str, value: str, known: Any) -> None:
    if value not in known:
        near = get_close_matches(str(value), list(known), n=2)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise ValueError(f"{what} is {value!r}{hint} (known: {', '.join(known)})")
