"""The rendered text of every site under every option: accepted by its release line, sound in itself, ours alone."""

import re
from ipaddress import IPv4Network

import pytest

from infra.rules import judge
from infra.vyos import artefacts
from infra.vyos.ownership import is_open, rule_of
from infra.vyos.paths import refused, template_of
from infra.vyos.reach import BAND, MARK
from infra.vyos.statements import Statement
from tests.sites import ROOT
from tests.vyos import SITES, VARIANTS, below, rendered, value, variant, version_of

ALL = [(name, site) for name in VARIANTS for site in SITES]
every = pytest.mark.parametrize(("name", "site"), ALL)


@every
def test_the_release_line_takes_every_statement(name: str, site: str) -> None:
    assert refused(rendered(name, site), version_of(name, site)) == []


@every
def test_no_statement_is_there_twice_and_no_single_value_has_two(name: str, site: str) -> None:
    found = rendered(name, site)
    assert len(set(found)) == len(found)
    single = [one[:-1] for one in found if (path := template_of(one, version_of(name, site))) and path.kind == "value"]
    assert len(set(single)) == len(single)


@pytest.mark.parametrize(
    ("statement", "taken"),
    [
        (("firewall", "zone", "FLEET", "member", "interface", "wg0"), "1.5"),
        (("firewall", "zone", "FLEET", "interface", "wg0"), "1.4"),
        (("interfaces", "wireguard", "wg0", "peer", "sp", "host-name", "vpn.example.org"), "1.5"),
    ],
)
def test_paths_of_one_release_line_are_refused_on_the_other(statement: Statement, taken: str) -> None:
    for version in ("1.4", "1.5"):
        assert bool(refused([statement], version)) == (version != taken)


@pytest.mark.parametrize(
    "line",
    [
        "interfaces wireguard eth0 port 1",
        "interfaces wireguard wg0 port 65536",
        "interfaces wireguard wg0 adress 10.255.0.1/30",
        "interfaces wireguard wg0 address 10.255.0.1",
        "interfaces wireguard wg0 peer sp allowed-ips 10.42.0.1/16",
        "interfaces wireguard wg0 peer sp public-key short=",
        "interfaces wireguard wg0 peer sp pubkey " + "A" * 43 + "=",
        "protocols bgp 65001 neighbor 10.255.0.2 remote-as 65002",
        "protocols bgp neighbor 10.255.0.2 remote-as 0",
        "protocols bgp peer-group FLEET-CILIUM timers holdtime 30",
        "protocols static interface-route 10.42.0.0/16 next-hop-interface wg0",
        "policy route-map FLEET-NONE rule 0 action deny",
        "policy prefix-list FLEET.POD rule 10 action permit",
        "firewall name FLEET-IN default-action drop",
        "firewall ipv4 forward filter default-action drop",
        "firewall global-options state-policy invalid action drop",
        "firewall ipv4 name FLEET-IN rule 10 state established enable",
        "firewall ipv4 name FLEET-IN rule 1000000 action accept",
        "nat destination rule 5000 inbound-interface eth0",
        "nat destination rule 5000 destination port http",
        "zone-policy zone FLEET interface wg0",
    ],
)
def test_other_paths_and_values_are_refused(line: str) -> None:
    for version in ("1.4", "1.5"):
        assert refused([tuple(line.split())], version)


@every
def test_every_name_that_is_referred_to_is_defined(name: str, site: str) -> None:
    found, zones = rendered(name, site), variant(name).sites[site].vyos.zones
    policies = {(kind, one[0]) for kind in ("prefix-list", "route-map") for one in below(found, "policy", kind)}
    groups = {one[:2] for one in below(found, "firewall", "group")}
    chains = {one[0] for one in below(found, "firewall", "ipv4", "name")}
    peers = {one[0] for one in below(found, "protocols", "bgp", "peer-group")}
    for one in found:
        match one:
            case (*_, "prefix-list", wanted) if one[:2] == ("policy", "route-map"):
                assert ("prefix-list", wanted) in policies
            case (*_, "route-map", "import" | "export", wanted):
                assert ("route-map", wanted) in policies
            case (*_, "group", "network-group" | "address-group" as kind, wanted) if one[1] != "group":
                assert (kind, wanted) in groups
            case (*_, "jump-target" | "name", wanted) if one[-2] == "jump-target" or one[-3] == "firewall":
                assert wanted in chains
            case (*_, "peer-group", wanted) if "neighbor" in one:
                assert wanted in peers
            case ("firewall", "zone", zone, *_) if zone != "FLEET":
                assert zones is not None
                assert zone in (zones.lan, zones.local)


@every
def test_a_rule_says_what_it_does_and_a_port_has_its_protocol(name: str, site: str) -> None:
    found = rendered(name, site)
    rules = {one[: one.index("rule") + 2] for one in found if "rule" in one}
    for rule in rules:
        parts = {part[:-1]: part[-1] for part in below(found, *rule)}
        if rule[0] != "nat":
            assert ("action",) in parts
            assert (parts["action",] == "jump") == (("jump-target",) in parts)
        else:
            assert ("translation", "address") in parts
        if ("destination", "port") in parts:
            assert parts["protocol",] in ("tcp", "udp")


@every
def test_rules_among_those_of_the_site_stand_in_our_band_and_are_marked(name: str, site: str) -> None:
    found, zones = rendered(name, site), variant(name).sites[site].vyos.zones
    own_chains = {chain for key, chain in zones or () if "_to_" in key}
    for one in found:
        ours = one[0] in ("interfaces", "protocols") or any(
            word == "FLEET" or word.startswith("FLEET-") for word in one[2:5]
        )
        if ours:
            continue
        rule = rule_of(one)
        assert rule is not None, one
        assert int(rule[-1]) in BAND
        assert (value(found, *rule, "description") or "").startswith(MARK)
        assert rule[2] != "name" or rule[3] in own_chains
    assert not [one for one in found if "global-options" in one or {"filter", "default-action"} <= set(one)]


@every
def test_net_02_one_peer_and_one_port_for_each_tunnel_interface(name: str, site: str) -> None:
    found, fleet = rendered(name, site), variant(name)
    tunnels = [tunnel for tunnel in fleet.common.tunnels if site in tunnel.ends]
    ports = [value(found, "interfaces", "wireguard", tunnel.interface, "port") for tunnel in tunnels]
    assert len(set(ports)) == len(ports)
    for tunnel in tunnels:
        (far,) = set(tunnel.ends) - {site}
        assert {one[0] for one in below(found, "interfaces", "wireguard", tunnel.interface, "peer")} == {far}
        dialled = value(found, "interfaces", "wireguard", tunnel.interface, "peer", far, "port")
        assert dialled in (None, value(rendered(name, far), "interfaces", "wireguard", tunnel.interface, "port"))


def test_net_04_the_dynamic_end_dials_and_the_fixed_one_waits() -> None:
    peer = ("interfaces", "wireguard", "wg0", "peer")
    assert value(rendered("as shipped", "sp"), *peer, "franca", "address") == "200.145.122.96"
    assert value(rendered("as shipped", "sp"), *peer, "franca", "persistent-keepalive") == "25"
    for leaf in ("address", "host-name", "port", "persistent-keepalive"):
        assert value(rendered("as shipped", "franca"), *peer, "sp", leaf) is None
    assert value(rendered("a fixed end", "franca"), *peer, "sp", "address") == "203.0.113.20"
    name = ("interfaces", "wireguard", "wg1", "peer", "norte", "host-name")
    assert value(rendered("a name to dial", "franca"), *name) == "vpn.example.org"


def test_the_variants_are_documents_that_rules_of_their_own_matter_alone_stop() -> None:
    stopped = {name: {fault.id for fault in judge(variant(name)).stops} for name in VARIANTS}
    assert {name: ids for name, ids in stopped.items() if ids} == {
        "exported VIPs": {"BGP-06"},
        "a fixed end": {"TRF-03"},
        "MultiKueue": {"KUE-09"},
        "no tunnel": {"MSH-02"},
        "the mesh API outside the LAN": {"BGP-07"},
        "no LAN routes": {"NET-11"},
        "no Cilium": {"K3S-01"},
        "one small Pod CIDR": {"NET-07", "DOC-07"},
    }


@every
def test_net_10_and_12_lans_and_pods_of_peers_are_routed_through_their_tunnel(name: str, site: str) -> None:
    found, fleet = rendered(name, site), variant(name)
    for tunnel in fleet.common.tunnels:
        if site not in tunnel.ends:
            continue
        (far,) = set(tunnel.ends) - {site}
        peer, hop = fleet.sites[far], str(tunnel.ends[far])
        lan = ("protocols", "static", "route", str(peer.network.lan_cidr), "next-hop", hop)
        assert (lan in found) == fleet.sites[site].wireguard.route_lans
        allowed = below(found, "interfaces", "wireguard", tunnel.interface, "peer", far, "allowed-ips")
        carried = [IPv4Network(one[0]) for one in allowed]
        for cluster in peer.clusters.values():
            route = ("protocols", "static", "route", str(cluster.pod_cidr), "next-hop", hop, "distance", "210")
            assert (route in found) == (cluster.cni == "cilium")
            assert (cluster.pod_cidr in carried) == (cluster.cni == "cilium")
        assert not [(a, b) for a in carried for b in carried if a is not b and a.overlaps(b)]


def test_net_16_files_lie_where_the_plan_says_and_are_what_the_documents_say() -> None:
    from infra.config import load  # noqa: PLC0415  # the shipped documents alone, without the third site

    fleet, _ = load(ROOT)
    assert fleet is not None
    paths = set()
    for site in fleet.sites:
        for path, text in artefacts.files(fleet, site).items():
            assert (ROOT / path).read_text(encoding="utf-8") == text, "run: ./fleet render --all --write"
            paths.add(path)
    assert {"config/vyos/wireguard/franca.conf", "config/vyos/wireguard/sp.conf"} <= paths
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "config/vyos").rglob("*.conf")} == paths


@every
def test_net_17_keys_and_passwords_are_placeholders(name: str, site: str) -> None:
    found = rendered(name, site)
    secrets = [one for one in found if one[-2] in ("private-key", "password", "preshared-key")]
    assert all(is_open(one) for one in secrets)
    private = {one[2] for one in secrets if one[-2] == "private-key"}
    assert private == {tunnel.interface for tunnel in variant(name).common.tunnels if site in tunnel.ends}
    assert any(one[-2] == "password" for one in secrets) == (name == "authenticated")


def test_a_third_site_changes_what_concerns_it_alone() -> None:
    """The files of two sites without it are in those with it, but for lists that name several peers."""
    from infra.config import load  # noqa: PLC0415  # likewise

    fleet, _ = load(ROOT)
    assert fleet is not None
    for site in fleet.sites:
        alone, beside = set(artefacts.statements(fleet, site)), set(rendered("as shipped", site))
        lost = alone - beside
        assert {one[-2:] for one in lost} <= {("port", "51820")}  # listeners of both tunnels in one rule
        # The jump to the third site's chain is one rule; the line that says "jump" names nobody.
        jump = ("firewall", "ipv4", "name", "FLEET-IN", "rule", "20", "action", "jump")
        added = [" ".join(one) for one in beside - alone - {jump}]
        norte = r"norte|NORTE|wg1|wg2|10\.255\.[12]\.|172\.2[23]\.|10\.43\.|5182"
        assert all(re.search(norte, one) for one in added), added
