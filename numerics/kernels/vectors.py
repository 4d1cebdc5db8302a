"""The inner loops of the CPU backend: explicit vectors of 16 float32, in LLVM's own instructions.

LLVM lowers ``<16 x float>`` to AVX-512, two AVX2 or four SSE registers; each instruction rounds the same. No fast-math
flag is set, so nothing is reordered or contracted, and every fused multiply-add is ``llvm.fma``.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from numerics.kernels.definition import (
    LANES,
    LOG2E_HIGH,
    LOG2E_LOW,
    LOWEST,
    MAGIC,
    POLYNOMIAL,
)

__all__ = ["chunk_maximum", "chunk_sums", "number"]

_WIDTH = 16
_VECTORS = LANES // _WIDTH
_F, _I, _H, _B, _L = ir.FloatType(), ir.IntType(32), ir.IntType(16), ir.IntType(1), ir.IntType(64)
_VF, _VI, _VH = (ir.VectorType(t, _WIDTH) for t in (_F, _I, _H))


def _floats(value: Any) -> ir.Constant:
    return ir.Constant(_VF, [float(value)] * _WIDTH)


def _integers(value: int) -> ir.Constant:
    return ir.Constant(_VI, [value] * _WIDTH)


def _splat(b: Any, x: Any) -> Any:
    one = b.insert_element(ir.Constant(_VF, ir.Undefined), x, _I(0))
    return b.shuffle_vector(one, ir.Constant(_VF, ir.Undefined), ir.Constant(_VI, [0] * _WIDTH))


def _load(b: Any, base: Any, i: Any, element: Any) -> Any:
    """16 logits from place ``i`` as float32; uint16 holds bfloat16, whose bits are the upper half of a float32."""
    address = b.gep(base, [i])
    if element == types.uint16:
        halves = b.load(b.bitcast(address, _VH.as_pointer()), align=2)
        return b.bitcast(b.shl(b.zext(halves, _VI), _integers(16)), _VF)
    return b.load(b.bitcast(address, _VF.as_pointer()), align=4)


def _halve(b: Any, vectors: list[Any], combine: Any) -> Any:
    """The fixed tree over all lanes: the upper half onto the lower half, until one number is left."""
    while len(vectors) > 1:
        half = len(vectors) // 2
        vectors = [combine(vectors[k], vectors[k + half]) for k in range(half)]
    v, width = vectors[0], _WIDTH
    while width > 1:
        width //= 2
        undefined = ir.Constant(v.type, ir.Undefined)
        low, high = (
            b.shuffle_vector(v, undefined, ir.Constant(ir.VectorType(_I, width), list(range(at, at + width))))
            for at in (0, width)
        )
        v = combine(low, high)
    return b.extract_element(v, _I(0))


class _Loop:
    """``for i in range(0, n, LANES)`` with accumulators, as LLVM's phi nodes."""

    def __init__(self, b: Any, n: Any, initial: list[Any]) -> None:
        self.b, self.n = b, n
        before = b.block
        self.body, self.end = b.append_basic_block("lanes"), b.append_basic_block("lanes.end")
        b.branch(self.body)
        b.position_at_end(self.body)
        self.i = b.phi(_L)
        self.i.add_incoming(_L(0), before)
        self.accumulators = [b.phi(v.type) for v in initial]
        for phi, value in zip(self.accumulators, initial, strict=True):
            phi.add_incoming(value, before)

    def close(self, new: list[Any]) -> None:
        b = self.b
        following = b.add(self.i, _L(LANES))
        more = b.icmp_signed("<", following, self.n)
        b.cbranch(more, self.body, self.end)
        self.i.add_incoming(following, b.block)
        for phi, value in zip(self.accumulators, new, strict=True):
            phi.add_incoming(value, b.block)
        b.position_at_end(self.end)


def _base(context: Any, b: Any, kind: Any, array: Any, start: Any) -> Any:
    return b.gep(context.make_array(kind)(context, b, array).data, [start])


@intrinsic
def number(typing: Any, row: Any, i: Any) -> Any:
    """``row[i]`` as float32; uint16 holds bfloat16."""
    signature = types.float32(row, types.int64)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        x = b.load(_base(context, b, sig.args[0], args[0], args[1]))
        if sig.args[0].dtype == types.uint16:
            return b.bitcast(b.shl(b.zext(x, _I), _I(16)), _F)
        return x

    return signature, generate


@intrinsic
def chunk_maximum(typing: Any, row: Any, start: Any, n: Any) -> Any:
    """``(largest, has NaN)`` of ``row[start : start + n]``, n a multiple of LANES. NaN is passed over."""
    signature = types.Tuple((types.float32, types.boolean))(row, types.int64, types.int64)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        base = _base(context, b, sig.args[0], args[0], args[1])
        lowest, none = _floats("-inf"), ir.Constant(ir.VectorType(_B, _WIDTH), [0] * _WIDTH)
        loop = _Loop(b, args[2], [lowest] * _VECTORS + [none])
        vectors = [_load(b, base, b.add(loop.i, _L(_WIDTH * k)), sig.args[0].dtype) for k in range(_VECTORS)]
        new = [
            b.select(b.fcmp_ordered(">", x, largest), x, largest)
            for x, largest in zip(vectors, loop.accumulators, strict=False)
        ]
        odd = loop.accumulators[-1]
        for x, y in zip(vectors[::2], vectors[1::2], strict=True):
            odd = b.or_(odd, b.fcmp_unordered("uno", x, y))  # true if either is NaN
        loop.close([*new, odd])

        def larger(x: Any, y: Any) -> Any:
            return b.select(b.fcmp_ordered(">", x, y), x, y)

        bits = b.bitcast(odd, ir.IntType(_WIDTH))
        has_nan = b.icmp_unsigned("!=", bits, ir.IntType(_WIDTH)(0))
        return context.make_tuple(
            b,
            sig.return_type,
            (_halve(b, new, larger), context.cast(b, has_nan, types.boolean, types.boolean)),
        )

    return signature, generate


@intrinsic(prefer_literal=True)
def chunk_sums(
    typing: Any, row: Any, start: Any, n: Any, m: Any, t: Any, following: Any, scaled: Any, gaps: Any
) -> Any:
    """``(s, w, count)`` of y = row[start : start + n] / t with maximum m, as `specification._chunk` defines them.

    n: a multiple of LANES. following: where the next chunk starts, to be fetched meanwhile. scaled, gaps: literal 0 or
    1; without ``scaled`` t is 1 and not divided by, without ``gaps`` w is 0.
    """
    if not (isinstance(scaled, types.Literal) and isinstance(gaps, types.Literal)):
        return None
    i64, f32 = types.int64, types.float32
    signature = types.Tuple((f32, f32, i64))(row, i64, i64, f32, f32, i64, scaled, gaps)
    divides, weighs = bool(scaled.literal_value), bool(gaps.literal_value)

    def generate(context: Any, b: Any, sig: Any, args: Any) -> Any:
        element = sig.args[0].dtype
        base = _base(context, b, sig.args[0], args[0], args[1])
        fetched = _base(context, b, sig.args[0], args[0], args[5])
        maximum, temperature = _splat(b, args[3]), _splat(b, args[4])
        fma_ = cgutils.get_or_insert_function(b.module, ir.FunctionType(_VF, [_VF] * 3), "llvm.fma.v16f32")
        pointer = ir.IntType(8).as_pointer()
        prefetch = cgutils.get_or_insert_function(
            b.module, ir.FunctionType(ir.VoidType(), [pointer, _I, _I, _I]), "llvm.prefetch.p0"
        )

        def fma(x: Any, y: Any, z: Any) -> Any:
            return b.call(fma_, [x, y, z])

        zero = _floats(0.0)
        loop = _Loop(b, args[2], [zero] * (_VECTORS * (2 if weighs else 1)) + [_integers(0)])
        line = 64 // (2 if element == types.uint16 else 4)
        for ahead in range(0, LANES, line):
            address = b.bitcast(b.gep(fetched, [b.add(loop.i, _L(ahead))]), pointer)
            b.call(prefetch, [address, _I(0), _I(2), _I(1)])
        sums, weights, count = [], [], loop.accumulators[-1]
        for k in range(_VECTORS):
            y = _load(b, base, b.add(loop.i, _L(_WIDTH * k)), element)
            if divides:
                y = b.fdiv(y, temperature)
            high = b.fsub(y, maximum)
            back = b.fsub(high, y)
            low = b.fsub(b.fsub(y, b.fsub(high, back)), b.fadd(maximum, back))
            top = b.fcmp_ordered("==", high, zero)
            inside = b.and_(b.fcmp_ordered(">=", high, _floats(LOWEST)), b.not_(top))
            shifted = fma(high, _floats(LOG2E_HIGH), _floats(MAGIC))
            f = fma(high, _floats(LOG2E_HIGH), b.fsub(_floats(MAGIC), shifted))
            f = fma(high, _floats(LOG2E_LOW), f)
            f = fma(low, _floats(LOG2E_HIGH), f)
            p = _floats(POLYNOMIAL[0])
            for c in POLYNOMIAL[1:]:
                p = fma(p, f, _floats(c))
            exponent = b.shl(b.bitcast(shifted, _VI), _integers(23))
            e = b.select(inside, b.bitcast(b.add(b.bitcast(p, _VI), exponent), _VF), zero)
            sums.append(b.fadd(loop.accumulators[k], e))
            if weighs:
                gap = b.select(inside, b.fsub(zero, high), zero)
                weights.append(fma(e, gap, loop.accumulators[_VECTORS + k]))
            count = b.select(top, b.add(count, _integers(1)), count)
        loop.close([*sums, *weights, count])
        s = _halve(b, sums, b.fadd)
        w = _halve(b, weights, b.fadd) if weighs else _F(0.0)
        total = b.sext(_halve(b, [count], b.add), _L)
        return context.make_tuple(b, sig.return_type, (s, w, total))

    return signature, generate
