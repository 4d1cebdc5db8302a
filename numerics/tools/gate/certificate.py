"""A record of one verdict that another machine can recompute: digests of the inputs, rules, counts, versions.

The digest over its own text finds an edited certificate. It is **not a signature**: whoever edits the text can compute
the digest anew. What a certificate claims of the inputs is believed only because `verify` computes it again from them.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from numerics import __version__
from numerics.tools.arrays import InputError
from numerics.tools.gate.files import Judged, judge_files
from numerics.tools.gate.verdict import CODES, Declared, Rules

__all__ = ["MAX_BYTES", "SCHEMA", "SCHEMA_FILE", "Verification", "certify", "digest", "read", "verify"]

SCHEMA = "numerics.gate.certificate/1"
#: the published JSON schema of a certificate
SCHEMA_FILE = Path(__file__).with_name("certificate.schema.json")
#: a certificate has about 4 KB; nothing beyond this is read
MAX_BYTES = 1 << 20
_SELF = "self_sha256"


def digest(tensor: torch.Tensor) -> dict[str, Any]:
    """dtype, shape, and SHA-256 of both and of the little-endian bytes in row-major order: of bits, not of values."""
    bits = tensor.detach().cpu().contiguous()
    if bits.dtype == torch.bool:
        bits = bits.to(torch.uint8)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[bits.element_size()]
    array = bits.reshape(-1).view(integers).numpy()
    dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    text = f"{dtype} {shape}\n".encode()
    return {"dtype": dtype, "shape": shape, "sha256": hashlib.sha256(text + data).hexdigest()}


def certify(judged: Judged) -> str:
    """The certificate's text: JSON with sorted keys, ending in a newline."""
    body = _body(judged)
    return _text({**body, _SELF: _own(body)})


def _body(judged: Judged) -> dict[str, Any]:
    verdict = judged.verdict
    said = verdict.as_dict()
    mask = digest(judged.valid) | {"valid_count": int(judged.valid.sum())}
    return {
        "schema": SCHEMA,
        "versions": {
            "numerics": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "inputs": {
            "rollout": digest(judged.rollout.tensor),
            "trainer": None if judged.trainer is None else digest(judged.trainer.tensor),
            "mask": mask,
        },
        "codes": list(CODES),
        "reasons": [reason.code for reason in verdict.reasons],
        **{name: said[name] for name in ("rules", "declared", "passed", "count", "places", "mismatch")},
    }


def _text(body: dict[str, Any]) -> str:
    return json.dumps(body, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=True) + "\n"


def _own(body: dict[str, Any]) -> str:
    return hashlib.sha256(_text(body).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What recomputing a certificate found."""

    passed: bool  #: what the certificate says of its gate
    differences: tuple[str, ...]  #: what does not come out again
    notes: tuple[str, ...]  #: versions that are others here, which is no difference

    @property
    def holds(self) -> bool:
        """Whether everything that the certificate says is so."""
        return not self.differences


def read(file: str) -> tuple[str, dict[str, Any]]:
    """``(text, content)`` of a certificate; `InputError` for what is none, however it is damaged."""
    path = Path(file)
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{file} is no certificate: it has more than {MAX_BYTES} bytes, a certificate about 4,000")
    try:
        text = data.decode("utf-8")
        content = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        raise InputError(f"{file} is no certificate: no JSON, or truncated ({error})") from error
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise InputError(f"{file} is no certificate of schema {SCHEMA!r}: its schema is {str(found)[:80]!r}")
    if not isinstance(content.get(_SELF), str):
        raise InputError(f"{file} is no whole certificate: {_SELF!r} is missing")
    return text, content


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


def verify(
    file: str, rollout: str, trainer: str | None, *, mask: str | None = None, lengths: str | None = None
) -> Verification:
    """Recompute the certificate in ``file`` from the arrays, named as in `judge_files`.

    It holds if its text is as it was written and everything it says, the versions apart, comes out again. `InputError`
    for a file that is no certificate, or for arrays that cannot be read.
    """
    text, content = read(file)
    claimed = {name: value for name, value in content.items() if name != _SELF}
    try:
        written = _text(content) == text and _own(claimed) == content[_SELF]
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} is no certificate: {error}") from error
    if not written:
        edited = "the text is not as it was written: its own digest does not fit, and nothing in it can be used"
        return Verification(passed=False, differences=(edited,), notes=())
    try:
        rules = Rules(**{**claimed["rules"], "compare_dtype": getattr(torch, claimed["rules"]["compare_dtype"], None)})
        declared = Declared(**claimed["declared"])
        passed, versions = bool(claimed["passed"]), dict(claimed["versions"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{file} is no certificate of this version: {type(error).__name__}: {error}") from error
    judged = judge_files(rollout, trainer, mask=mask, lengths=lengths, rules=rules, declared=declared)
    here = _body(judged)
    current = here["versions"]
    return Verification(
        passed=passed,
        differences=tuple(_apart({**claimed, "versions": current}, here)),
        notes=tuple(
            f"{name} {version} wrote it, this is {current.get(name)}"
            for name, version in versions.items()
            if current.get(name) != version
        ),
    )


def _apart(claimed: Any, here: Any, place: str = "") -> Iterator[str]:
    """Where two trees of plain values differ, one line each."""
    if isinstance(claimed, dict) and isinstance(here, dict):
        for name in sorted({**claimed, **here}):
            inside = f"{place}.{name}" if place else name
            if name not in claimed or name not in here:
                yield f"{inside} is missing {'in the certificate' if name not in claimed else 'here'}"
            else:
                yield from _apart(claimed[name], here[name], inside)
    elif json.dumps(claimed) != json.dumps(here):
        yield f"{place}: the certificate says {_short(claimed)}, here it is {_short(here)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
