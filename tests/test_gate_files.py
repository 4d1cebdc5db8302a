"""`numerics gate`: files, options, exit codes; certificates, whole and spoiled; what a framework's own tests use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from numerics.tools.arrays import WELL_KNOWN, InputError
from numerics.tools.gate import certificate
from numerics.tools.gate.certificate import MAX_BYTES, SCHEMA_FILE, digest, verify
from numerics.tools.gate.verdict import CODES, Declared, Rules
from numerics.tools.gate_cli import gate_command

DATA = Path(__file__).parent / "data" / "rollouts"
HF16 = str(DATA / "hf_bf16_generate_batch1.npz")
REPLAY = (f"{HF16}:rollout_lp", f"{HF16}:lp__bf16_sdpa_1_none_cache", "--lengths", f"{HF16}:rlen")
RECOMPUTED = (f"{HF16}:rollout_lp", f"{HF16}:lp__bf16_sdpa_1_none", "--lengths", f"{HF16}:rlen")

Q = np.array([[-0.5, -1.25, -3.0], [-0.1, -2.0, -0.7]], np.float32)


def gate(*arguments: str) -> Result:
    result = CliRunner().invoke(gate_command, [*map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def dump(tmp_path: Path) -> Callable[..., str]:
    def write(name: str = "dump.npz", /, **contents: Any) -> str:
        np.savez(tmp_path / name, **contents)
        return str(tmp_path / name)

    return write


# --- the command --------------------------------------------------------------------------------------------


def test_a_replay_passes_and_a_recomputation_does_not() -> None:
    passed, failed = gate(*REPLAY), gate(*RECOMPUTED)
    assert (passed.exit_code, failed.exit_code) == (0, 1)
    assert passed.stdout == (
        f"rollout  {REPLAY[0]}   float32 [4, 32]\n"
        f"trainer  {REPLAY[1]}   float32 [4, 32]\n"
        "numerics gate: PASSED: 0 of 128 tokens differ, 0 allowed\n"
    )
    assert "numerics gate: FAILED: 128 of 128 tokens differ, 0 allowed\n  mismatch: " in failed.stdout
    assert gate(*RECOMPUTED, "--allow", "128").exit_code == 0
    assert gate(*RECOMPUTED, "--allow", "127").exit_code == 1


def test_without_a_trainer_it_is_found_or_a_bypass(dump: Callable[..., str]) -> None:
    found = gate(dump(rollout_log_probs=Q, old_log_probs=Q))
    assert found.exit_code == 0
    assert "dump.npz:old_log_probs   float32 [2, 3]   found by name (verl)" in found.stdout
    absent = gate(dump(rollout_log_probs=Q, response_mask=np.ones_like(Q)))
    assert absent.exit_code == 1
    assert "bypass: there are no trainer log-probs" in absent.stdout
    assert gate(dump(rollout_log_probs=Q), "other.npz").exit_code == 2


def test_one_file_and_key_on_both_sides(dump: Callable[..., str], tmp_path: Path) -> None:
    file = dump(rollout_log_probs=Q, old_log_probs=Q)
    (tmp_path / "link.npz").symlink_to(file)
    for other in (file, str(tmp_path / "link.npz"), str(tmp_path / "." / "dump.npz")):
        found = gate(f"{file}:rollout_log_probs", f"{other}:rollout_log_probs")
        assert found.exit_code == 1
        assert "shared_storage: both sides are the array" in found.stdout
    copy = dump("copy.npz", rollout_log_probs=Q)
    assert gate(f"{file}:rollout_log_probs", f"{copy}:rollout_log_probs").exit_code == 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--bypass"], "bypass"),
        (["--rollout-source", "vllm", "--trainer-source", "vllm"], "bypass"),
        (["--rollout-mode", "raw", "--trainer-mode", "processed"], "mode"),
    ],
)
def test_declarations(options: list[str], code: str) -> None:
    found = gate(*REPLAY, *options)
    assert found.exit_code == 1
    assert f"  {code}: " in found.stdout


def test_bits_nonfinite_strict_and_narrowed(dump: Callable[..., str], tmp_path: Path) -> None:
    zeros = dump(a=np.float32([0.0, -1.0]), b=np.float32([-0.0, -1.0]), n=np.float32([math.nan, -1.0]))
    assert gate(f"{zeros}:a", f"{zeros}:b").exit_code == 0
    assert gate(f"{zeros}:a", f"{zeros}:b", "--bits").exit_code == 1
    other = dump("other.npz", n=np.float32([math.nan, -1.0]))
    assert gate(f"{zeros}:n", f"{other}:n", "--bits").exit_code == 1
    assert gate(f"{zeros}:n", f"{other}:n", "--bits", "--allow-nonfinite", "1").exit_code == 0
    assert gate(f"{zeros}:n", f"{other}:n", "--allow-nonfinite", "1").exit_code == 1
    half = torch.tensor([-0.5, -1.0], dtype=torch.bfloat16)
    file = str(tmp_path / "half.safetensors")
    save_file({"a": half, "b": half.clone()}, file)
    assert gate(f"{file}:a", f"{file}:b").exit_code == 0
    assert "both_bf16: " in gate(f"{file}:a", f"{file}:b", "--strict-dtype").stdout
    wide = dump("wide.npz", a=np.float64([-0.1]), b=np.float64([-0.1]))
    assert "narrowed: " in gate(f"{wide}:a", f"{wide}:b").stdout
    assert gate(f"{wide}:a", f"{wide}:b", "--compare-dtype", "float64").exit_code == 0


@pytest.mark.parametrize("key", [known.name for known in WELL_KNOWN if known.role == "token_ids"])
def test_each_well_known_name_of_token_ids_is_found(dump: Callable[..., str], key: str) -> None:
    file = dump(**{"rollout_lp": Q, "lp__x": Q + 1, key: np.arange(6).reshape(2, 3) + 50})
    assert json.loads(gate(file, "--token-ids", file, "--json").stdout)["first"][1]["token_id"] == 51


def test_token_ids_are_named(dump: Callable[..., str]) -> None:
    file = dump(rollout_log_probs=Q, old_log_probs=Q - np.float32(0.5), responses=np.arange(6).reshape(2, 3) + 1000)
    record = json.loads(gate(file, "--token-ids", file, "--json").stdout)
    assert [t["token_id"] for t in record["first"]] == list(range(1000, 1006))
    assert gate(file, "--token-ids", f"{file}:rollout_log_probs").exit_code == 2


def test_formats() -> None:
    record = json.loads(gate(*RECOMPUTED, "--format", "json").stdout)
    assert record["inputs"]["trainer"]["source"] == RECOMPUTED[1]
    assert (record["schema"], record["passed"], record["count"]) == ("numerics.gate/1", False, 128)
    assert gate(*RECOMPUTED, "--json").stdout == gate(*RECOMPUTED, "--format", "json").stdout
    assert gate(*RECOMPUTED, "--format", "github").stdout.startswith("::error title=numerics gate%3A mismatch::128 of")
    assert gate(*REPLAY, "--format", "github").stdout.startswith("::notice title=numerics gate::")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.npz:a", "missing.npz:b"], "no such file"),
        ([*REPLAY[:2], "--mask", f"{HF16}:rollout_lp"], "only 0 and 1 are allowed"),
        ([*REPLAY, "--mask", f"{HF16}:rollout_lp"], "both mask and lengths"),
        ([*REPLAY, "--allow", "-1"], "Invalid value for '--allow'"),
        ([*REPLAY, "--temperature", "0.7"], "--temperature does not go with log-probs"),
        ([*REPLAY, "--sampling", "temperature"], "'temperature' is not KEY=VALUE"),
        ([*REPLAY, "--sampling", "a=1", "--sampling", "a=2"], "'a' is given twice"),
        ([*REPLAY, "--certificate", "/nowhere/x.json"], "/nowhere/x.json"),
        ([*REPLAY, "--full"], "one length for each row"),
        ([*REPLAY, "--full", "--bits"], "--bits does not go with --full"),
        ([REPLAY[0], "--full"], "whole distributions need both sides"),
        ([*REPLAY[:2], "--full", "--temperature", "nan"], "temperature is nan; it must be finite and > 0"),
        ([*REPLAY[:2], "--full", "--temperature", "inf"], "temperature is inf"),
        ([HF16, HF16, "--full"], "logits have no well-known name; give the rollout's as FILE:KEY"),
        ([*REPLAY, "--verify", "missing.json"], "missing.json cannot be read"),
        ([*REPLAY, "--verify", "missing.json", "--allow", "1"], "--allow does not go with --verify"),
    ],
)
def test_bad_input_exits_with_2(arguments: list[str], message: str) -> None:
    found = gate(*arguments)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr


def test_full(dump: Callable[..., str]) -> None:
    logits = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    other = logits.copy()
    other[3, 39] = np.nextafter(other[3, 39], np.float32(9))
    file = dump(a=logits, same=logits, b=other, mask=np.array([1, 1, 1, 0, 1]), one=np.array([[1, 0, 0, 0, 0]]))
    assert gate("--full", f"{file}:a", f"{file}:same", "--temperature", "0.7").exit_code == 0
    found = gate("--full", f"{file}:a", f"{file}:b")
    assert found.exit_code == 1
    assert "1 of 5 rows differ in bits" in found.stdout
    assert "token 39 of row 3" in found.stdout
    assert gate("--full", f"{file}:a", f"{file}:b", "--mask", f"{file}:mask").exit_code == 0
    assert gate("--full", f"{file}:a", f"{file}:b", "--allow", "1").exit_code == 0
    assert "shared_storage" in gate("--full", f"{file}:a", f"{file}:a").stdout
    record = json.loads(gate("--full", f"{file}:a", f"{file}:b", "--temperature", "0.7", "--json").stdout)
    assert record["schema"] == "numerics.gate.full/1"
    assert (record["raw"]["logprob_gap_row"], record["processed"]["logprob_gap_token"]) == (3, 39)
    assert gate("--full", f"{file}:a", f"{file}:b", "--mask", f"{file}:one").exit_code == 2


def test_on_a_machine_without_a_terminal_nothing_is_coloured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "numerics.cli", "gate", *RECOMPUTED], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "\x1b" not in done.stdout


# --- certificates -------------------------------------------------------------------------------------------


@pytest.fixture
def certified(dump: Callable[..., str], tmp_path: Path) -> tuple[str, str]:
    """A dump and the certificate of its passing gate."""
    file = dump(rollout_log_probs=Q, old_log_probs=Q, response_mask=np.array([[1, 1, 0], [1, 1, 1]]))
    paper = str(tmp_path / "gate.json")
    assert gate(file, "--mask", file, "--certificate", paper, "--sampling", "temperature=0.7").exit_code == 0
    return file, paper


def verified(paper: str, file: str, mask: str | None = None) -> Result:
    return gate("--verify", paper, file, "--mask", mask or file)


def test_an_untouched_certificate_holds(certified: tuple[str, str]) -> None:
    file, paper = certified
    found = verified(paper, file)
    assert (found.exit_code, found.stdout) == (
        0,
        f"numerics gate: certificate {paper} HOLDS: it says that the gate passed\n",
    )
    record = json.loads(gate("--verify", paper, file, "--mask", file, "--json").stdout)
    assert record == {
        "schema": "numerics.gate.verification/1",
        "holds": True,
        "passed": True,
        "differences": [],
        "notes": [],
    }
    assert gate("--verify", paper, file, "--mask", file, "--format", "github").stdout.startswith("::notice")


def test_a_failing_gate_is_certified_as_one(dump: Callable[..., str], tmp_path: Path) -> None:
    file, paper = dump(rollout_log_probs=Q, old_log_probs=Q + 1), str(tmp_path / "gate.json")
    assert gate(file, "--certificate", paper).exit_code == 1
    found = gate("--verify", paper, file)
    assert found.exit_code == 1
    assert "HOLDS: it says that the gate failed" in found.stdout


def any_bit_of_the_inputs(paper: str, dump: Callable[..., str]) -> None:
    """Every byte of both sides and every place of the mask, masked places too: their change is seen."""
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.uint8)
    chance = random.Random(0)
    for key, name in (("rollout_log_probs", "rollout"), ("old_log_probs", "trainer"), ("response_mask", "mask")):
        for place in range(6 if name == "mask" else 24):
            arrays = {"rollout_log_probs": Q.copy(), "old_log_probs": Q.copy(), "response_mask": mask.copy()}
            arrays[key].reshape(-1).view(np.uint8)[place] ^= 1 if name == "mask" else 1 << chance.randrange(8)
            changed = dump("changed.npz", **arrays)
            found = verify(paper, changed, None, mask=changed)
            assert any(d.startswith(f"inputs.{name}.sha256: ") for d in found.differences), (name, place)
    zero = np.zeros_like(Q)
    zeros = [
        dump(f"zero{i}.npz", rollout_log_probs=x, old_log_probs=x, response_mask=mask)
        for i, x in enumerate((zero, -zero))
    ]
    assert gate(zeros[0], "--mask", zeros[0], "--certificate", f"{paper}.zero").exit_code == 0
    assert verify(f"{paper}.zero", zeros[0], None, mask=zeros[0]).holds
    assert not verify(f"{paper}.zero", zeros[1], None, mask=zeros[1]).holds


def any_other_form_of_the_inputs(paper: str, dump: Callable[..., str]) -> None:
    """Other shapes and dtypes of the same values."""
    arrays = {"rollout_log_probs": Q, "old_log_probs": Q, "response_mask": np.array([[1, 1, 0], [1, 1, 1]])}
    turned = dump("turned.npz", **{name: x.reshape(3, 2) for name, x in arrays.items()})
    for name in ("rollout", "trainer", "mask"):
        assert any(f"inputs.{name}.sha256: " in d for d in verify(paper, turned, None, mask=turned).differences)
    zero = torch.zeros(2)
    digests = [digest(x)["sha256"] for x in (zero, -zero, zero.to(torch.int32), zero.reshape(1, 2), zero.reshape(2, 1))]
    assert len(set(digests)) == 5
    steps = torch.arange(6.0).reshape(2, 3)
    assert digest(steps.t()) == digest(steps.t().contiguous())
    assert digest(torch.tensor(-0.5))["shape"] == []


def any_character_of_the_text(paper: str, file: str) -> None:
    """Every character changed, removed or doubled: never does it hold, and nothing of it is used."""
    text = Path(paper).read_text()
    chance = random.Random(1)
    try:
        for place, old in enumerate(text):
            new = (chr(ord(old) ^ (1 << chance.randrange(7))), "", old + old, chance.choice("0123456789abcdef \n"))
            if new[place % 4] != old:
                Path(paper).write_text(text[:place] + new[place % 4] + text[place + 1 :])
                with contextlib.suppress(InputError):
                    assert not verify(paper, file, None, mask=file).holds, place
    finally:
        Path(paper).write_text(text)


def any_forged_claim(paper: str, file: str) -> None:
    """A claim that is edited, and the digest with it, does not come out again."""
    text = Path(paper).read_text()
    try:
        for path, value in FORGED:
            content = json.loads(text)
            inside = content
            for name in path[:-1]:
                inside = inside[name]
            inside[path[-1]] = value
            Path(paper).write_text(_resigned(content))
            found = verify(paper, file, None, mask=file)
            assert any(".".join(path) in d for d in found.differences), path
    finally:
        Path(paper).write_text(text)


#: what a forger would write
FORGED: list[tuple[tuple[str, ...], Any]] = [
    (("count",), 1),
    (("passed",), False),
    (("places",), 7),
    (("reasons",), ["mismatch"]),
    (("codes",), ["mismatch"]),
    (("mismatch", "valid_count"), 6),
    (("mismatch", "logprobs_diff_max"), 1e-9),
    (("inputs", "mask", "valid_count"), 6),
    (("inputs", "trainer"), None),
    (("extra",), 0),
]


def _resigned(content: dict[str, Any]) -> str:
    """The text of an edited certificate, with a fitting digest of its own."""
    body = {name: value for name, value in content.items() if name != "self_sha256"}
    return certificate._text({**body, "self_sha256": certificate._own(body)})


def _everything(certified: tuple[str, str], dump: Callable[..., str]) -> None:
    file, paper = certified
    assert verify(paper, file, None, mask=file).holds
    any_bit_of_the_inputs(paper, dump)
    any_other_form_of_the_inputs(paper, dump)
    any_character_of_the_text(paper, file)
    any_forged_claim(paper, file)


def test_a_certificate_holds_exactly_if_nothing_changed(certified: tuple[str, str], dump: Callable[..., str]) -> None:
    _everything(certified, dump)
    file, paper = certified
    assert verified(paper, file).exit_code == 0


def _sha(text: str, tensor: torch.Tensor) -> dict[str, Any]:
    found = hashlib.sha256(text.encode() + tensor.contiguous().numpy().tobytes()).hexdigest()
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape), "sha256": found}


def _head(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"


def _only_inputs(claimed: Any, here: Any, place: str = "") -> Any:
    return iter(()) if place and not place.startswith("inputs") else _APART(claimed, here, place)


_APART = certificate._apart
#: wrong certificates and verifications, one idea each: (name in the module, what stands there instead)
WRONG: dict[str, tuple[str, Any]] = {
    "digest without the shape": ("digest", lambda x: _sha(str(x.dtype), x)),
    "digest without the dtype": ("digest", lambda x: _sha(str(list(x.shape)), x)),
    "digest of values, not bits": ("digest", lambda x: _sha(_head(x), x if x.dtype == torch.bool else x + 0)),
    "digest in the order of memory": ("digest", lambda x: _sha(_head(x), x.as_strided((x.numel(),), (1,)))),
    "digest of the first bytes": ("digest", lambda x: _sha(_head(x), x.reshape(-1)[:4])),
    "the text's digest is not checked": ("_own", lambda body: "0" * 64),
    "counts are believed": ("_apart", _only_inputs),
    "nothing is recomputed": ("_apart", lambda claimed, here: iter(())),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_certificate_is_killed(
    wrong: tuple[str, Any], dump: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, *wrong)
    monkeypatch.setitem(globals(), "digest", certificate.digest)
    file = dump(rollout_log_probs=Q, old_log_probs=Q, response_mask=np.array([[1, 1, 0], [1, 1, 1]]))
    paper = str(tmp_path / "gate.json")
    assert gate(file, "--mask", file, "--certificate", paper).exit_code == 0
    with pytest.raises(AssertionError):
        _everything((file, paper), dump)


def test_a_mask_is_what_it_selects(certified: tuple[str, str], dump: Callable[..., str]) -> None:
    _, paper = certified
    file = dump("m.npz", rollout_log_probs=Q, old_log_probs=Q, response_mask=np.float32([[1, 1, 0], [1, 1, 1]]))
    assert verified(paper, file).exit_code == 0
    assert gate("--verify", paper, file).exit_code == 1  # without the mask


def test_other_versions_are_a_note(certified: tuple[str, str]) -> None:
    file, paper = certified
    content = json.loads(Path(paper).read_text())
    content["versions"]["torch"] = "2.6.0"
    Path(paper).write_text(_resigned(content))
    found = verified(paper, file)
    assert found.exit_code == 0
    assert "note: torch 2.6.0 wrote it, this is " in found.stdout


_SOUND = '{"schema": "numerics.gate.certificate/1"'


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no JSON, or truncated"),
        (b"{", "no JSON, or truncated"),
        (b"\xff\xfe{}", "no JSON, or truncated"),
        (b"[1, 2]", "its schema is 'None'"),
        (b'"text"', "its schema is 'None'"),
        (b'{"schema": "numerics.gate.certificate/2"}', "its schema is 'numerics.gate.certificate/2'"),
        (b'{"schema": ["x"]}', "its schema is"),
        (_SOUND.encode() + b"}", "'self_sha256' is missing"),
        (_SOUND.encode() + b', "self_sha256": 7}', "'self_sha256' is missing"),
        (_SOUND.encode() + b', "count": NaN}', "NaN is no JSON"),
        (b"[" * 200_000, "no JSON, or truncated"),
        (_SOUND.encode() + b', "count": ' + b"9" * 5000 + b"}", "no JSON, or truncated"),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES} bytes"),
    ],
    ids=range(13),
)
def test_hostile_certificates_exit_with_2(tmp_path: Path, data: bytes, message: str) -> None:
    paper = tmp_path / "hostile.json"
    paper.write_bytes(data)
    found = gate("--verify", str(paper), *REPLAY)
    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert len(found.stderr) < 500


@pytest.mark.parametrize(
    "spoil",
    [
        lambda c: c.pop("rules"),
        lambda c: c.update(rules=[]),
        lambda c: c["rules"].update(allow=-1),
        lambda c: c["rules"].update(compare_dtype="bfloat16"),
        lambda c: c["rules"].update(compare_dtype=3),
        lambda c: c["declared"].update(bypass="no"),
        lambda c: c.update(declared=None),
        lambda c: c.pop("passed"),
        lambda c: c.update(versions="1.0"),
    ],
    ids=range(9),
)
def test_a_forged_certificate_that_is_none_exits_with_2(certified: tuple[str, str], spoil: Callable[..., Any]) -> None:
    file, paper = certified
    content = json.loads(Path(paper).read_text())
    spoil(content)
    Path(paper).write_text(_resigned(content))
    found = verified(paper, file)
    assert found.exit_code == 2
    assert "is no certificate of this version" in found.stderr


def test_hostile_arrays_exit_with_2(certified: tuple[str, str], tmp_path: Path) -> None:
    file, paper = certified
    data = Path(file).read_bytes()
    for i, spoiled in enumerate([data[: len(data) // 2], b"", b"\x80\x04pickle", data.replace(b"old_log", b"ald_log")]):
        other = tmp_path / f"spoiled{i}.npz"
        other.write_bytes(spoiled)
        assert verified(paper, str(other), mask=file).exit_code == (1 if i == 3 else 2)


# --- the published schema -----------------------------------------------------------------------------------


def test_the_schema_is_of_these_certificates(certified: tuple[str, str], dump: Callable[..., str]) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    _, paper = certified
    papers = [json.loads(Path(paper).read_text())]
    for options in (["--bits", "--allow", "2"], ["--rollout-mode", "raw", "--rollout-policy", "7"]):
        gate(
            dump("bad.npz", rollout_log_probs=Q, old_log_probs=Q * np.float32(math.nan)),
            *options,
            "--certificate",
            paper,
        )
        papers.append(json.loads(Path(paper).read_text()))
    gate(dump("none.npz", rollout_log_probs=Q), "--certificate", paper)
    papers.append(json.loads(Path(paper).read_text()))
    for content in papers:
        validator.validate(content)
    first = papers[0]
    assert set(first) == set(schema["required"]) == set(schema["properties"])
    for spoiled in (
        first | {"extra": 1},
        first | {"count": -1},
        first | {"reasons": ["other"]},
        first | {"self_sha256": "0"},
        {name: value for name, value in first.items() if name != "rules"},
        first | {"mismatch": first["mismatch"] | {"valid_count": 0.5}},
    ):
        assert not validator.is_valid(spoiled)
    assert schema["$defs"]["codes"]["items"]["enum"] == list(CODES)
    assert set(schema["properties"]["rules"]["properties"]) == set(Rules().as_dict())
    assert set(schema["properties"]["declared"]["properties"]) == set(Declared().as_dict())


# --- in a framework's own tests -----------------------------------------------------------------------------

_TESTS = """
import pytest, torch

Q = torch.tensor([-0.5, -1.0, 0.0])

def test_passes(numerics_gate):
    assert numerics_gate(Q, Q.clone()).passed

def test_fails(numerics_gate):
    numerics_gate(Q, Q + 1)

@pytest.mark.numerics_gate(bits=True)
class TestBits:
    def test_two_zeros(self, numerics_gate):
        numerics_gate(Q, Q * torch.tensor([1.0, 1.0, -1.0]))

    @pytest.mark.numerics_gate(allow=1)
    def test_two_zeros_allowed(self, numerics_gate):
        verdict = numerics_gate(Q, Q * torch.tensor([1.0, 1.0, -1.0]))
        assert (verdict.rules.bits, verdict.rules.allow, verdict.count) == (True, 1, 1)

    def test_the_call_wins(self, numerics_gate):
        numerics_gate(Q, Q * torch.tensor([1.0, 1.0, -1.0]), bits=False)

@pytest.mark.numerics_gate(3)
def test_wrong_marker(numerics_gate):
    pass
"""


def test_the_fixture_and_the_marker(tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text(_TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--strict-markers", "-q", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    said = done.stdout
    assert re.findall(r"(?m)^(FAILED|ERROR) test_own.py::(\S+)", said) == [
        ("FAILED", "test_fails"),
        ("FAILED", "TestBits::test_two_zeros"),
        ("ERROR", "test_wrong_marker"),
    ]
    assert "numerics gate: FAILED: 3 of 3 tokens differ, 0 allowed" in said
    assert "it got (3,)" in said
