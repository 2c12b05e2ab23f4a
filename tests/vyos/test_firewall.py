"""What the rendered firewall lets out of a tunnel and to the router, worked out rule by rule."""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pytest

from infra.vyos.reach import mesh_api, nodes, routed_clusters
from infra.vyos.statements import Statement
from tests.vyos import SITES, VARIANTS, below, rendered, value, variant

ALL = [(name, site) for name in VARIANTS for site in SITES]
every = pytest.mark.parametrize(("name", "site"), ALL)
ANY_LAN_HOST = 77


@dataclass(frozen=True)
class Packet:
    source: str
    target: str
    protocol: str = "tcp"
    port: int = 0


def verdict(found: tuple[Statement, ...], chain: str, packet: Packet) -> str:
    """Of the first packet of a connection, in a chain without jumps."""
    base = ("firewall", "ipv4", "name", chain)
    for number in sorted({int(one[0]) for one in below(found, *base, "rule")}):
        rule = (*base, "rule", str(number))
        if below(found, *rule, "state") or not _matches(found, rule, packet):
            continue
        return value(found, *rule, "action") or ""
    return value(found, *base, "default-action") or ""


def _matches(found: tuple[Statement, ...], rule: Statement, packet: Packet) -> bool:
    if value(found, *rule, "protocol") not in (None, packet.protocol):
        return False
    ports = value(found, *rule, "destination", "port")
    if ports is not None and str(packet.port) not in ports.split(","):
        return False
    return all(_side(found, rule, side, getattr(packet, side[1])) for side in SIDES)


SIDES = (("source", "source"), ("destination", "target"))


def _side(found: tuple[Statement, ...], rule: Statement, side: tuple[str, str], address: str) -> bool:
    wanted = [one[0] for one in below(found, *rule, side[0], "address")]
    for kind, leaf in (("network-group", "network"), ("address-group", "address")):
        group = value(found, *rule, side[0], "group", kind)
        if group is not None:
            wanted += [one[0] for one in below(found, "firewall", "group", kind, group, leaf)]
    return not wanted or any(IPv4Address(address) in IPv4Network(one) for one in wanted)


def peers(name: str, site: str) -> list[str]:
    tunnels = [tunnel for tunnel in variant(name).common.tunnels if site in tunnel.ends]
    return [end for tunnel in tunnels for end in tunnel.ends if end != site]


@every
def test_net_13_and_14_and_bgp_06_what_comes_out_of_a_tunnel(name: str, site: str) -> None:
    found, fleet = rendered(name, site), variant(name)
    own = fleet.sites[site]
    for far in peers(name, site):
        peer, chain = fleet.sites[far], f"FLEET-SITE-{far.upper()}-FORWARD"

        def accepts(packet: Packet, chain: str = chain) -> bool:
            return verdict(found, chain, packet) == "accept"

        both = bool(routed_clusters(own) and routed_clusters(peer))
        pod = {one: str(next(iter(fleet.sites[one].clusters.values())).pod_cidr[300 % 256]) for one in (site, far)}
        assert accepts(Packet(pod[far], pod[site], "udp", 9999)) == both
        if not both:
            continue
        node, far_node = str(nodes(own)[0]), str(nodes(peer)[0])
        assert accepts(Packet(far_node, node, "udp", 8472)) == (fleet.common.cilium.datapath == "tunnel")
        assert accepts(Packet(far_node, node, "tcp", 4240))
        assert not accepts(Packet(far_node, node, "tcp", 22))
        assert not accepts(Packet(far_node, node, "tcp", 6443))
        mesh = mesh_api(own)
        if mesh is not None:
            assert accepts(Packet(far_node, str(mesh), "tcp", 2379))
            assert not accepts(Packet(far_node, str(mesh), "tcp", 2380))
        for address in range(int(own.lb.pool.start), int(own.lb.pool.stop) + 1):
            for port in (80, 443, 2379, 8472):
                reached = accepts(Packet(far_node, str(IPv4Address(address)), "tcp", port))
                assert reached == (IPv4Address(address) == mesh and port == 2379)
        stranger = str(peer.network.lan_cidr[ANY_LAN_HOST])
        assert not accepts(Packet(stranger, pod[site], "tcp", 80))


def test_net_13_a_chain_is_bound_to_its_tunnel_in_both_models() -> None:
    zones, chains = rendered("as shipped", "franca"), rendered("chains", "franca")
    assert ("firewall", "zone", "LAN", "from", "FLEET", "firewall", "name", "FLEET-IN") in zones
    assert ("firewall", "zone", "LOCAL", "from", "FLEET", "firewall", "name", "FLEET-ROUTER") in zones
    assert value(zones, "firewall", "zone", "FLEET", "intra-zone-filtering", "action") == "drop"
    assert {one[0] for one in below(zones, "firewall", "zone", "FLEET", "interface")} == {"wg0", "wg1"}
    for found, base in (
        (zones, ("firewall", "ipv4", "name", "FLEET-IN", "rule")),
        (chains, ("firewall", "ipv4", "forward", "filter", "rule")),
    ):
        jumps = {
            value(found, *base, one[0], "inbound-interface", "name"): one[2]
            for one in below(found, *base)
            if one[1] == "jump-target"
        }
        assert jumps == {"wg0": "FLEET-SITE-SP-FORWARD", "wg1": "FLEET-SITE-NORTE-FORWARD"}


def test_base_chains_drop_the_rest_that_comes_out_of_a_tunnel_to_the_router() -> None:
    found = rendered("chains", "franca")
    base = ("firewall", "ipv4", "input", "filter", "rule")
    dropped = {one[0] for one in below(found, *base) if one[1:] == ("action", "drop")}
    accepted = {one[0] for one in below(found, *base) if one[1:] == ("action", "accept")}
    assert {value(found, *base, number, "inbound-interface", "name") for number in dropped} == {"wg0", "wg1"}
    assert max(map(int, accepted)) < min(map(int, dropped))


@every
def test_net_18_ssh_only_where_the_document_says_so(name: str, site: str) -> None:
    ssh = [one for one in rendered(name, site) if one[-2:] == ("port", "22")]
    assert bool(ssh) == (site == "sp" and name.startswith("admin SSH"))


def test_net_19_the_manager_reaches_the_api_of_gpu_clusters() -> None:
    packet = Packet("192.168.0.12", "192.168.10.51", "tcp", 6443)
    assert verdict(rendered("MultiKueue", "sp"), "FLEET-SITE-FRANCA-FORWARD", packet) == "accept"
    assert verdict(rendered("as shipped", "sp"), "FLEET-SITE-FRANCA-FORWARD", packet) == "drop"
    other = Packet("172.22.64.21", "192.168.10.51", "tcp", 6443)
    assert verdict(rendered("MultiKueue", "sp"), "FLEET-SITE-NORTE-FORWARD", other) == "drop"


def test_mig_08_and_trf_03_the_forward_comes_with_the_cut_over() -> None:
    def forwards(name: str) -> list[Statement]:
        return [one for one in rendered(name, "franca") if one[0] == "nat" or "connection-status" in one]

    assert forwards("as shipped") == []
    found = tuple(forwards("the old proxy gone"))
    rule = ("nat", "destination", "rule", "5000")
    assert value(found, *rule, "destination", "address") == "200.145.122.96"
    assert value(found, *rule, "destination", "port") == "80,443"
    assert value(found, *rule, "translation", "address") == "192.168.0.240"
    assert ("firewall", "ipv4", "name", "WAN-LAN", "rule", "5000", "connection-status", "nat", "destination") in found
    assert rendered("as shipped", "sp") == rendered("the old proxy gone", "sp")
