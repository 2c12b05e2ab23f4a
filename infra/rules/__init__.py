"""The invariants of the documents, one module per family. Importing the package registers all of them.

Leaves out what no document shows: resources as declared (tests and `policy/`), and changes against the state.
"""

from infra.rules import bgp, cil, decided, doc, gen, gpu, k3s, lxc, met, msh, net, pve, tier
from infra.rules.registry import RULES, Finding, Rule, Verdict, judge

FAMILIES = (doc, gen, pve, tier, lxc, gpu, k3s, net, bgp, met, cil, msh, decided)

__all__ = ["FAMILIES", "RULES", "Finding", "Rule", "Verdict", "judge"]
