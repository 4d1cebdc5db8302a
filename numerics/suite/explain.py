"""What ``numerics explain`` prints: a property, a contract or a capability, from the code that defines it."""

from __future__ import annotations

import inspect
from difflib import get_close_matches

from numerics.suite import bounds
from numerics.suite.builtin import BUILTIN
from numerics.suite.contracts import CONTRACTS
from numerics.suite.faults import FAULTS
from numerics.suite.implementation import CAPABILITIES
from numerics.suite.properties import PROPERTIES
from numerics.suite.property import Property
from numerics.suite.report import describe
from numerics.suite.runner import Check

__all__ = ["explain"]

#: the bound whose derivation a contract's properties rest on
_BOUNDS = {
    "token_logprobs": bounds.token_logprobs,
    "entropy": bounds.entropy,
    "mismatch": bounds.std,
}


def explain(name: str) -> str:
    """The text for a property id or slug, a contract or a capability; `KeyError` with near names otherwise."""
    if name in CONTRACTS:
        return _contract(name)
    if name in CAPABILITIES:  # before properties: some share their name with the capability they hold to account
        users = [p.id for p in PROPERTIES.values() if name in p.requires]
        return f"{name}\n  {CAPABILITIES[name]}\n  needed by {', '.join(users) or 'no property'}"
    for prop in PROPERTIES.values():
        if name in (prop.id, prop.slug, prop.name):
            return _property(prop)
    known = [*PROPERTIES, *CONTRACTS, *CAPABILITIES, *(p.name for p in PROPERTIES.values())]
    near = get_close_matches(name, known, n=3)
    raise KeyError(
        f"nothing called {name!r}{'; did you mean ' + ', '.join(near) + '?' if near else ''} (numerics list)"
    )


def _property(prop: Property) -> str:
    lines = [f"{prop.id} {prop.name}   ({prop.contract})", f"  rule      {prop.statement}", ""]
    lines += ["  " + line for line in inspect.cleandoc(prop.doc).splitlines()]
    if prop.requires:
        lines += ["", f"  needs     {', '.join(sorted(prop.requires))}"]
    killed = [f for f in FAULTS.values() if prop.id in f.breaks]
    if killed:
        lines += ["", "  planted faults that it must kill:"]
        lines += [f"    {f.id}: {f.idea.splitlines()[0]}   [{f.source}]" for f in killed]
        fault = killed[0]
        check = Check(property=prop, implementation=fault.implementation, device="cpu", dtype=fault.dtype)
        lines += ["", "  a failure looks like this:"]
        lines += ["    " + line for line in describe(check.run(max_examples=100, seed=check.derived_seed)).splitlines()]
    return "\n".join(lines)


def _contract(name: str) -> str:
    contract = CONTRACTS[name]
    lines = [f"{name}: {contract.summary}", "", f"  call      {contract.signature}", f"  returns   {contract.returns}"]
    who = [n for n, found in BUILTIN.items() if any(i.contract == name for i in found)]
    lines += [f"  built in  {', '.join(who)}", "", "  rules"]
    lines += [f"    {p.id}  {p.name:24} {p.statement}" for p in PROPERTIES.values() if p.contract == name]
    if name in _BOUNDS:
        lines += ["", "  bound"]
        lines += ["    " + line for line in inspect.cleandoc(_BOUNDS[name].__doc__ or "").splitlines()]
    return "\n".join(lines)
