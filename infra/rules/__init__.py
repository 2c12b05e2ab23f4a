"""The invariants of the documents, one module per family. Importing the package registers all of them.

Leaves out what no document shows: resources as declared (tests and `policy/`), and changes against the state.
"""

from infra.rules import (
    ai,
    app,
    arg,
    bgp,
    bkp,
    cil,
    dcp,
    decided,
    doc,
    gen,
    gpu,
    k3s,
    kar,
    kue,
    lxc,
    met,
    mig,
    msh,
    net,
    obs,
    pve,
    sec,
    sto,
    tier,
    trf,
)
from infra.rules.registry import RULES, Finding, Rule, Verdict, judge

FAMILIES = (
    *(doc, gen, pve, tier, lxc, gpu, k3s, net, bgp, met, cil, msh),
    *(kar, kue, arg, trf, sec, sto, bkp, mig, obs, ai, app, dcp, decided),
)

__all__ = ["FAMILIES", "RULES", "Finding", "Rule", "Verdict", "judge"]
