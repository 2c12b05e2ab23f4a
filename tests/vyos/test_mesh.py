"""What the mesh needs of the routers, which no document can take away: the firewall's rules and the routes of Pods."""

import itertools

import pytest

from infra.vyos.reach import mesh_api, nodes
from infra.vyos.statements import Statement
from tests.vyos import SITES, below, rendered, variant
from tests.vyos.policies import neighbor_map, passes
from tests.vyos.test_firewall import Packet, verdict

PAIRS = list(itertools.permutations(SITES, 2))  # every site of these has a member, and MSH-02 wants tunnels for all
pairs = pytest.mark.parametrize(("here", "there"), PAIRS)


def pod(site: str) -> str:
    member = variant("as shipped").sites[site].mesh_member
    assert member is not None
    return str(member.pod_cidr[300])


def without(found: tuple[Statement, ...], chain: str, description: str) -> tuple[Statement, ...]:
    """The configuration less the one rule of a chain that says so of itself."""
    base = ("firewall", "ipv4", "name", chain, "rule")
    (number,) = (one[0] for one in below(found, *base) if one[1:] == ("description", description))
    return tuple(one for one in found if one[: len(base) + 1] != (*base, number))


@pairs
@pytest.mark.parametrize("what", ["to Pods", "to the mesh API", "encapsulated Pod traffic", "health of nodes"])
def test_msh_02_each_firewall_rule_of_the_mesh_is_there_and_needed(here: str, there: str, what: str) -> None:
    fleet = variant("as shipped")
    node, far_node = (str(nodes(fleet.sites[one])[0]) for one in (here, there))
    packet = {
        "to Pods": Packet(pod(there), pod(here), "tcp", 5432),
        "to the mesh API": Packet(far_node, str(mesh_api(fleet.sites[here])), "tcp", 2379),
        "encapsulated Pod traffic": Packet(far_node, node, "udp", 8472),
        "health of nodes": Packet(far_node, node, "tcp", 4240),
    }[what]
    found, chain = rendered("as shipped", here), f"FLEET-SITE-{there.upper()}-FORWARD"
    assert verdict(found, chain, packet) == "accept"
    assert verdict(without(found, chain, what), chain, packet) == "drop"


@pairs
def test_msh_02_pods_of_a_member_have_a_route_at_every_other_one(here: str, there: str) -> None:
    """Announced, taken, and let into the tunnel."""
    fleet = variant("as shipped")
    (tunnel,) = (one for one in fleet.common.tunnels if {here, there} == set(one.ends))
    member = fleet.sites[there].mesh_member
    assert member is not None
    near, far = rendered("as shipped", here), rendered("as shipped", there)
    own, theirs = tunnel.ends[here], tunnel.ends[there]
    for route in map(str, member.pod_cidr.subnets(new_prefix=24)):
        assert passes(far, neighbor_map(far, str(own), "export"), route)
        assert passes(near, neighbor_map(near, str(theirs), "import"), route)
    allowed = {one[0] for one in below(near, "interfaces", "wireguard", tunnel.interface, "peer", there, "allowed-ips")}
    assert str(member.pod_cidr) in allowed
