"""The command ``numerics gate``. torch is imported when it runs, not for ``--help``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from numerics.tools.gate.certificate import Verification

__all__ = ["gate_command"]

#: what is asked and declared of two arrays of log-probs: a certificate says it itself
_SAID = (
    "allow",
    "bits",
    "allow_nonfinite",
    "compare_dtype",
    "strict_dtype",
    "rollout_mode",
    "trainer_mode",
    "bypass",
    "rollout_source",
    "trainer_source",
    "rollout_policy",
    "trainer_policy",
    "sampling",
)


@click.command("gate")
@click.argument("rollout")
@click.argument("trainer", required=False)
@click.option("--mask", metavar="FILE[:KEY]", help="0/1 array of the same shape; 1 = valid.")
@click.option("--lengths", metavar="FILE[:KEY]", help="Number of valid tokens of each row, padded on the right.")
@click.option("--token-ids", metavar="FILE[:KEY]", help="Token ids, named in the report.")
@click.option(
    "--allow", type=click.IntRange(min=0), default=0, show_default=True, help="Tokens (--full: rows) that may differ."
)
@click.option("--bits", is_flag=True, help="Count other bits, not other values: +0 and -0 differ, all NaNs are alike.")
@click.option(
    "--allow-nonfinite",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Valid tokens that may hold NaN or infinity.",
)
@click.option("--strict-dtype", is_flag=True, help="Fail where both sides are stored in bfloat16.")
@click.option(
    "--compare-dtype",
    type=click.Choice(["float32", "float64"]),
    default="float32",
    show_default=True,
    help="The format both sides are cast to once.",
)
@click.option("--rollout-mode", type=click.Choice(["raw", "processed"]), help="What the rollout's log-probs are.")
@click.option("--trainer-mode", type=click.Choice(["raw", "processed"]), help="What the trainer's are.")
@click.option("--bypass", is_flag=True, help="Declare that the trainer's log-probs are the rollout's own: fails.")
@click.option("--rollout-source", metavar="NAME", help="Who computed the rollout's log-probs, such as vllm.")
@click.option("--trainer-source", metavar="NAME", help="Who computed the trainer's; the same source is a bypass.")
@click.option("--rollout-policy", metavar="VERSION", help="Version of the rollout's weights.")
@click.option("--trainer-policy", metavar="VERSION", help="Version of the trainer's weights.")
@click.option(
    "--sampling", metavar="KEY=VALUE", multiple=True, help="A sampling parameter for the record (repeatable)."
)
@click.option("--full", is_flag=True, help="ROLLOUT and TRAINER are logits [..., V]: compare whole distributions.")
@click.option(
    "--temperature",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="With --full: compare the distributions at this temperature too.",
)
@click.option("--certificate", metavar="FILE", type=click.Path(dir_okay=False), help="Write a certificate to FILE.")
@click.option(
    "--verify", "verify_file", metavar="CERT", help="Recompute the certificate CERT from ROLLOUT and TRAINER."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "github"]),
    default="text",
    show_default=True,
    help="github: annotations of a pull request.",
)
@click.option("--json", "json_output", is_flag=True, help="The same as --format json.")
@click.pass_context
def gate_command(context: click.Context, /, **options: Any) -> None:
    """Pass only if no token's log-probs differ between ROLLOUT and TRAINER, and something was compared.

    ROLLOUT and TRAINER are arrays of log-probs (nats) of the same tokens, named as for `numerics compare`: FILE:KEY, or
    FILE with a well-known key; .npz or .safetensors. Without TRAINER it is looked for in ROLLOUT's file, and a file
    without any is a bypass, which fails.

    A gate that could not fail fails: nothing compared, everything masked, one array on both sides, a declared bypass,
    raw against processed, values that the cast changes.

    \b
    Examples:
      numerics gate dump.npz --mask dump.npz:response_mask
      numerics gate dump.npz:rollout_lp dump.npz:lp__fp32 --lengths dump.npz:rlen --certificate gate.json
      numerics gate --verify gate.json dump.npz:rollout_lp dump.npz:lp__fp32 --lengths dump.npz:rlen
      numerics gate --full logits.safetensors:rollout logits.safetensors:trainer --temperature 0.7

    Exit code: 0 if it passes (or the certificate holds and says so), 1 if not, 2 for bad input.
    """  # noqa: D301  (click wants the control character)
    from numerics.tools.arrays import InputError

    options["form"] = "json" if options.pop("json_output") else options["form"]
    run = _verify if options["verify_file"] else _full if options["full"] else _gate
    _refuse_others(context, run)
    try:
        code = run(options)
    except InputError as error:
        click.echo(f"error: {error}", err=True)
        code = 2
    context.exit(code)


def _working() -> Any:
    """A spinner on standard error while something is computed; nothing where that is no terminal."""
    from rich.console import Console

    return Console(stderr=True).status("comparing")


def _refuse_others(context: click.Context, run: Any) -> None:
    """Options that the chosen form does not take are no silence, but a usage error."""
    refused = {
        _verify: ((*_SAID, "full", "temperature", "certificate", "token_ids"), "--verify: the certificate says it"),
        _full: ((*_SAID[1:], "certificate", "token_ids"), "--full, which compares rows of logits"),
        _gate: (("temperature",), "log-probs: it belongs to --full"),
    }
    names, why = refused[run]
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise click.UsageError(f"--{name.replace('_', '-')} does not go with {why}")


def _gate(options: dict[str, Any]) -> int:
    import torch
    from rich.console import Console

    from numerics.tools.gate.certificate import certify
    from numerics.tools.gate.files import judge_files
    from numerics.tools.gate.report import as_github, as_json, show
    from numerics.tools.gate.verdict import Declared, Rules

    rules = Rules(
        **{name: options[name] for name in ("allow", "bits", "allow_nonfinite", "strict_dtype")},
        compare_dtype=getattr(torch, options["compare_dtype"]),
    )
    sides = [f"{side}_{what}" for side in ("rollout", "trainer") for what in ("mode", "source", "policy")]
    declared = Declared(
        bypass=options["bypass"],
        sampling=_sampling(options["sampling"]),
        **{name: options[name] for name in sides},
    )
    with _working():
        judged = judge_files(
            options["rollout"],
            options["trainer"],
            mask=options["mask"],
            lengths=options["lengths"],
            token_ids=options["token_ids"],
            rules=rules,
            declared=declared,
        )
    if options["certificate"]:
        try:
            Path(options["certificate"]).write_text(certify(judged), encoding="utf-8")
        except OSError as error:
            what = f"{options['certificate']} cannot be written: {error.strerror}"
            raise click.BadParameter(what, param_hint="--certificate") from error
    verdict = judged.verdict
    if options["form"] == "json":
        click.echo(as_json(verdict, judged.inputs()))
    elif options["form"] == "github":
        click.echo(as_github(verdict))
    else:
        for name, side in judged.inputs().items():
            if side is not None:
                found = f"   found by name ({side['origin']})" if side["origin"] else ""
                click.echo(f"{name}  {side['source']}   {side['dtype']} {side['shape']}{found}")
        show(verdict, Console(file=sys.stdout, highlight=False))
    return 0 if verdict.passed else 1


def _sampling(pairs: tuple[str, ...]) -> dict[str, Any]:
    """``KEY=VALUE`` options; a value that is JSON is read as such, anything else is a string."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE, such as temperature=0.7", param_hint="--sampling")
        if key in out:
            raise click.BadParameter(f"{key!r} is given twice", param_hint="--sampling")
        try:
            out[key] = json.loads(value, parse_constant=str)
        except ValueError:
            out[key] = value
    return out


def _full(options: dict[str, Any]) -> int:
    from rich.console import Console

    from numerics.tools.gate.files import judge_full
    from numerics.tools.gate.full import as_json, show
    from numerics.tools.gate.report import github_lines

    with _working():
        verdict = judge_full(
            options["rollout"],
            options["trainer"],
            mask=options["mask"],
            lengths=options["lengths"],
            temperature=options["temperature"],
            allow_rows=options["allow"],
        )
    if options["form"] == "json":
        click.echo(as_json(verdict))
    elif options["form"] == "github":
        click.echo(github_lines(verdict.headline, verdict.reasons))
    else:
        show(verdict, Console(file=sys.stdout, highlight=False))
    return 0 if verdict.passed else 1


def _verify(options: dict[str, Any]) -> int:
    from numerics.tools.gate.certificate import verify

    with _working():
        found = verify(
            options["verify_file"],
            options["rollout"],
            options["trainer"],
            mask=options["mask"],
            lengths=options["lengths"],
        )
    _print_verification(options["verify_file"], found, options["form"])
    return 0 if found.holds and found.passed else 1


def _print_verification(file: str, found: Verification, form: str) -> None:
    from numerics.tools.gate.report import annotation

    said = f"it says that the gate {'passed' if found.passed else 'failed'}"
    headline = f"numerics gate: certificate {file} {'HOLDS' if found.holds else 'DOES NOT HOLD'}"
    headline += f": {said}" if found.holds else f": {len(found.differences)} difference(s)"
    if form == "json":
        record = {
            "schema": "numerics.gate.verification/1",
            "holds": found.holds,
            "passed": found.passed,
            "differences": found.differences,
            "notes": found.notes,
        }
        click.echo(json.dumps(record, indent=2))
    elif form == "github":
        level = "notice" if found.holds and found.passed else "error"
        click.echo(annotation(level, "numerics gate: certificate", "\n".join([headline, *found.differences])))
    else:
        for line in (headline, *(f"  {d}" for d in found.differences), *(f"  note: {n}" for n in found.notes)):
            click.echo(line)
