"""What the router tests share: the rendered sites with each option, and the saved form of statements."""

import functools
import re
from collections.abc import Iterable
from typing import Any

from infra.config import Fleet
from infra.vyos.artefacts import statements
from infra.vyos.paths import template_of
from infra.vyos.statements import Statement
from tests.sites import Documents, changed

KEY = "c29tZS1wdWJsaWMta2V5LW9mLTMyLWJ5dGVzLTAwMDA="
NO_ZONES = {"firewall": "chains", "zones": None}


def _edit(documents: Documents, site: str, section: str, **values: Any) -> Documents:
    documents[site][section] = documents[site].get(section, {}) | values
    return documents


# Each option of the documents that changes what is rendered.
VARIANTS: dict[str, Any] = {
    "as shipped": lambda d: None,
    "exported VIPs": lambda d: _edit(d, "sp", "bgp", export_vips=True),
    "authenticated": lambda d: [_edit(d, site, "bgp", authenticated=True) for site in ("franca", "sp", "norte")],
    "an ASN of Cilium's own": lambda d: _edit(d, "franca", "bgp", cilium_asn=65101),
    "chains": lambda d: _edit(d, "franca", "vyos", **NO_ZONES),
    "zones of 1.5": lambda d: _edit(d, "franca", "vyos", version="1.5"),
    "a fixed end": lambda d: _edit(d, "sp", "wireguard", dynamic=False, endpoint="203.0.113.20", public_key=KEY),
    "a name to dial": lambda d: [
        _edit(d, "franca", "vyos", version="1.5"),
        _edit(d, "sp", "vyos", version="1.5"),
        _edit(d, "norte", "wireguard", endpoint="vpn.example.org"),
    ],
    "native datapath": lambda d: d["common"]["cilium"].update(datapath="native"),
    "MultiKueue": lambda d: d["common"]["multikueue"].update(enabled=True),
    "the old proxy gone": lambda d: d["franca"]["traefik"].pop("legacy_proxy"),
    "admin SSH": lambda d: _edit(d, "sp", "wireguard", allow_admin_ssh=True),
    "admin SSH and chains": lambda d: [
        _edit(d, "sp", "wireguard", allow_admin_ssh=True),
        _edit(d, "sp", "vyos", **NO_ZONES),
    ],
    "the mesh API outside the LAN": lambda d: [
        _edit(d, "norte", "lb", pool={"start": "172.23.9.1", "stop": "172.23.9.30"}),
        _edit(d, "norte", "lb", vips={"traefik": "172.23.9.4", "clustermesh_api": "172.23.9.5"}),
    ],
    "no LAN routes": lambda d: [_edit(d, site, "wireguard", route_lans=False) for site in ("franca", "sp", "norte")],
    "out of the mesh": lambda d: d["sp"]["clusters"]["cluster-sp"].update(in_mesh=False),
    "no Cilium": lambda d: d["norte"]["clusters"]["north"].update(cni="flannel", in_mesh=False, cluster_id=None),
    "no tunnel": lambda d: d["common"].update(tunnels=[]),
    "one small Pod CIDR": lambda d: d["sp"]["clusters"]["cluster-sp"].update(pod_cidr="10.42.0.0/24"),
}
SITES = ("franca", "sp", "norte")


@functools.cache
def variant(name: str) -> Fleet:
    return changed(VARIANTS[name])


@functools.cache
def rendered(name: str, site: str) -> tuple[Statement, ...]:
    return tuple(statements(variant(name), site))


def version_of(name: str, site: str) -> str:
    return variant(name).sites[site].vyos.version


def below(found: Iterable[Statement], *start: str) -> list[Statement]:
    """The rest of each statement that starts so."""
    return [statement[len(start) :] for statement in found if statement[: len(start)] == start]


def value(found: Iterable[Statement], *path: str) -> str | None:
    """The one value at a path, if there is one."""
    (one,) = below(found, *path) or [()]
    return one[0] if one else None


def saved(found: Iterable[Statement], version: str) -> str:
    """The statements as a router saves them, with its trailer."""
    leaves: dict[Statement, list[str]] = {}
    tree: dict[str, Any] = {}
    for statement in found:
        template = template_of(statement, version)
        is_leaf = template is not None and template.kind != "flag"
        node = tree
        for word in statement[:-1] if is_leaf else statement:
            node = node.setdefault(word, {})
        if is_leaf:
            leaves.setdefault(statement[:-1], []).append(statement[-1])
    firewall = {"1.4": 15, "1.5": 20}[version]
    trailer = [
        "",
        "// Warning: Do not remove the following line.",
        f'// vyos-config-version: "bgp@6:firewall@{firewall}:nat@8:quagga@11"',
        "// Release version: made up",
    ]
    return "\n".join([*_written(tree, leaves, ()), *trailer, ""])


def _written(node: dict[str, Any], leaves: dict[Statement, list[str]], above: Statement) -> list[str]:
    lines, indent = [], "    " * len(above)
    for name in sorted(node, key=_natural):
        here = (*above, name)
        lines += [f'{indent}{name} "{one}"' for one in leaves.get(here, [])]
        if here not in leaves:
            lines += [f"{indent}{name} {{", *_written(node[name], leaves, here), f"{indent}}}"]
    return lines


def _natural(text: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.findall(r"\d+|\D+", text)]
