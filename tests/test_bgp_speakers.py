"""What the lab's speakers are told: a router's rendered statements and a cluster's objects, as GoBGP has them.

Whether GoBGP then does what they mean is `tests/lab/test_bgp.py`.
"""

import base64
from typing import Any

import pytest

from infra.bgp import advertisement_spec, cluster_spec, override_specs, peer_spec
from infra.config import load
from infra.config.network import BgpNode
from infra.vyos import artefacts
from lab.bgp import agent, router
from tests.sites import ROOT, three_sites

SHIPPED, _ = load(ROOT)
assert SHIPPED is not None
FRANCA = artefacts.statements(SHIPPED, "franca")
Json = dict[str, Any]


def without(*words: str) -> list[router.Statement]:
    return [statement for statement in FRANCA if not {*words} <= {*statement}]


def decisions(statements: list[router.Statement], direction: str, neighbor: str) -> list[tuple[str, bool]]:
    """The policy of one neighbour: prefix set, empty for any, and whether it permits."""
    (policy,) = [one for one in router.configuration(statements)["policy-definitions"] if one["name"] == direction]
    return [
        (
            one["conditions"].get("match-prefix-set", {}).get("prefix-set", ""),
            one["actions"]["route-disposition"] == "accept-route",
        )
        for one in policy["statements"]
        if one["conditions"]["match-neighbor-set"]["neighbor-set"] == neighbor
    ]


def neighbor(statements: list[router.Statement], address: str, password: str = "") -> Json:
    neighbors = router.configuration(statements, password)["neighbors"]
    found: Json = next(one for one in neighbors if one["config"]["neighbor-address"] == address)
    return found


def test_a_route_map_ends_with_a_denial_for_its_neighbour() -> None:
    assert decisions(FRANCA, "import", "10.255.0.2") == [("FLEET-SITE-SP", True), ("", False)]
    assert decisions(FRANCA, "export", "10.255.0.2") == [("FLEET-POD", True), ("FLEET-MESH", True), ("", False)]
    assert decisions(FRANCA, "import", "192.168.0.13") == [("FLEET-POD", True), ("FLEET-VIP", True), ("", False)]
    assert decisions(FRANCA, "export", "192.168.0.13") == [("", False), ("", False)]


def test_a_neighbour_without_a_route_map_gets_what_vyos_gives_it() -> None:
    """Everything, unless it is an external one and the router asks for a policy."""
    bare = without("10.255.0.2", "export")
    assert decisions(bare, "export", "10.255.0.2") == [("", False)]
    lax = [statement for statement in bare if "ebgp-requires-policy" not in statement]
    assert decisions(lax, "export", "10.255.0.2") == [("", True)]
    internal = [statement for statement in FRANCA if statement[-1] != "FLEET-NONE" or "rule" in statement]
    assert decisions(internal, "export", "192.168.0.13") == [("", True)]


def test_prefix_lists_keep_their_lengths() -> None:
    sets = {
        one["prefix-set-name"]: [(entry["ip-prefix"], entry["masklength-range"]) for entry in one["prefix-list"]]
        for one in router.configuration(FRANCA)["defined-sets"]["prefix-sets"]
    }
    assert sets["FLEET-POD"] == [("10.41.0.0/16", "24..24")]
    assert sets["FLEET-VIP"] == [
        ("192.168.0.240/29", "32..32"), ("192.168.0.248/31", "32..32"), ("192.168.0.250/32", "32..32"),
    ]  # fmt: skip
    assert sets["FLEET-SITE-SP"] == [("10.42.0.0/16", "24..24"), ("192.168.10.241/32", "32..32")]


def test_a_member_of_a_group_has_its_settings() -> None:
    one = neighbor(FRANCA, "192.168.0.12")
    assert one["config"]["peer-as"] == 65001
    assert one["transport"]["config"]["passive-mode"] is True
    assert one["graceful-restart"]["config"] == {"enabled": True, "helper-only": True}
    assert one["afi-safis"][0]["prefix-limit"]["config"]["max-prefixes"] == 64
    other = neighbor(FRANCA, "10.255.0.2")
    assert (other["config"]["peer-as"], other["transport"]["config"]["local-address"]) == (65002, "10.255.0.1")
    assert other["timers"]["config"].items() >= {"keepalive-interval": 10, "hold-time": 30}.items()


def test_the_password_takes_the_place_of_its_mark_alone() -> None:
    marked = [*FRANCA, ("protocols", "bgp", "peer-group", "FLEET-CILIUM", "password", "@@BGP_PASSWORD@@")]
    assert neighbor(marked, "192.168.0.12", "s3cret")["config"]["auth-password"] == "s3cret"
    assert neighbor(marked, "10.255.0.2", "s3cret")["config"]["auth-password"] == ""


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (("protocols", "bgp", "neighbor", "10.255.0.2", "route-reflector-client"), "route-reflector-client"),
        (("protocols", "bgp", "redistribute", "connected"), "redistribute connected"),
        (("policy", "route-map", "FLEET-NONE", "rule", "10", "call", "FLEET-SITE-SP-IN"), "call"),
        (("policy", "prefix-list", "FLEET-POD", "rule", "20", "action", "deny"), "FLEET-POD rule 20"),
        (("protocols", "bgp", "neighbor", "10.255.0.9", "peer-group", "NONE"), "no peer-group NONE"),
        (("protocols", "bgp", "neighbor", "10.255.0.9", "passive"), "no remote-as"),
        (
            (
                "protocols",
                "bgp",
                "peer-group",
                "FLEET-CILIUM",
                "address-family",
                "ipv4-unicast",
                "route-map",
                "import",
                "X",
            ),
            "no route-map X",
        ),
        (
            ("policy", "route-map", "FLEET-SITE-SP-IN", "rule", "10", "match", "ip", "address", "prefix-list", "X"),
            "list X",
        ),
    ],
)
def test_what_decides_over_routes_and_has_no_meaning_here_is_refused(statement: router.Statement, said: str) -> None:
    with pytest.raises(router.Untranslatable, match=said):
        router.configuration([*FRANCA, statement])


def objects(**changed: Any) -> agent.Objects:
    """A cluster of two nodes of the third site, with the program's own objects."""
    bgp = three_sites().sites["norte"].bgp

    def node(name: str, number: int) -> Json:
        addresses = [{"type": "InternalIP", "address": f"172.22.64.{number}"}]
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        return {"metadata": metadata, "spec": {"podCIDR": f"10.43.{number}.0/24"}, "status": {"addresses": addresses}}

    labels = {"fleet.colabh.org/bgp": "site"}
    given: Json = {
        "nodes": [node("a", 1), node("b", 2)],
        "services": [],
        "endpoint_slices": [],
        "secrets": [],
        "clusters": [{"spec": cluster_spec(bgp, "172.22.64.254")}],
        "peers": [{"metadata": {"name": "router"}, "spec": peer_spec(bgp)}],
        "advertisements": [{"metadata": {"name": "site", "labels": labels}, "spec": advertisement_spec()}],
        "overrides": [],
    }
    return agent.Objects(**{**given, **changed})


def balanced(name: str, ip: str, **more: Any) -> Json:
    spec = {"type": "LoadBalancer", "clusterIP": "10.143.0.7", **more.get("spec", {})}
    metadata = {"name": name, "namespace": "apps", "labels": more.get("labels", {})}
    return {"metadata": metadata, "spec": spec, "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}}


def announced(given: agent.Objects) -> dict[str, set[str]]:
    return {name: set(one.announced) for name, one in agent.agents(given).items()}


def test_a_node_says_its_own_pods_and_the_addresses_of_services_and_no_cluster_ip() -> None:
    found = announced(objects(services=[balanced("web", "172.22.67.4")]))
    assert found == {"a": {"10.43.1.0/24", "172.22.67.4/32"}, "b": {"10.43.2.0/24", "172.22.67.4/32"}}


@pytest.mark.parametrize(
    "more",
    [
        {"labels": {"fleet.colabh.org/advertise": "false"}},
        {"spec": {"loadBalancerClass": "metallb.io/other"}},
        {"spec": {"type": "ClusterIP"}},
        {"spec": {"externalTrafficPolicy": "Local"}},
    ],
)
def test_a_service_that_opts_out_or_is_of_no_concern_is_not_announced(more: Json) -> None:
    assert announced(objects(services=[balanced("web", "172.22.67.4", **more)]))["a"] == {"10.43.1.0/24"}


def test_local_traffic_is_announced_where_it_can_end() -> None:
    ready = {"nodeName": "b", "conditions": {"ready": True}}
    metadata = {"namespace": "apps", "labels": {"kubernetes.io/service-name": "web"}}
    local = balanced("web", "172.22.67.4", spec={"externalTrafficPolicy": "Local"})
    found = announced(objects(services=[local], endpoint_slices=[{"metadata": metadata, "endpoints": [ready]}]))
    assert found == {"a": {"10.43.1.0/24"}, "b": {"10.43.2.0/24", "172.22.67.4/32"}}


def test_without_matching_labels_nothing_is_announced() -> None:
    stranger = [{"metadata": {"name": "site", "labels": {}}, "spec": advertisement_spec()}]
    assert announced(objects(advertisements=stranger)) == {"a": set(), "b": set()}


def test_the_speaker_of_a_node_has_the_programs_settings() -> None:
    bgp = three_sites().sites["norte"].bgp.model_copy(update={"authenticated": True, "graceful_restart_s": 44})
    secret = {"metadata": {"name": "fleet-bgp"}, "data": {"password": base64.b64encode(b"s3cret").decode()}}
    overrides = override_specs({"b": BgpNode.model_validate({"router_id": "192.0.2.2", "local_port": 1790})})
    given = objects(
        peers=[{"metadata": {"name": "router"}, "spec": peer_spec(bgp, on_link=False)}],
        secrets=[secret],
        overrides=[{"metadata": {"name": name}, "spec": spec} for name, spec in overrides.items()],
    )
    a, b = (one.configuration for one in agent.agents(given).values())
    assert a["global"]["config"] == {"as": 65103, "router-id": "172.22.64.1", "port": -1}
    assert b["global"]["config"] == {"as": 65103, "router-id": "192.0.2.2", "port": 1790}
    (one,) = a["neighbors"]
    assert one["config"] == {"neighbor-address": "172.22.64.254", "peer-as": 65003, "auth-password": "s3cret"}
    assert one["timers"]["config"].items() >= {"hold-time": 30, "keepalive-interval": 10}.items()
    assert one["graceful-restart"]["config"] == {"enabled": True, "restart-time": 44}
    assert one["ebgp-multihop"]["config"] == {"enabled": True, "multihop-ttl": 2}


def test_a_password_whose_secret_is_missing_is_none() -> None:
    bgp = three_sites().sites["norte"].bgp.model_copy(update={"authenticated": True})
    peers = [{"metadata": {"name": "router"}, "spec": peer_spec(bgp)}]
    (one, _) = agent.agents(objects(peers=peers)).values()
    assert one.configuration["neighbors"][0]["config"]["auth-password"] == ""


def test_a_node_that_no_configuration_selects_has_no_speaker() -> None:
    bgp = three_sites().sites["norte"].bgp
    selecting = {
        "spec": {**cluster_spec(bgp, "192.0.2.1"), "nodeSelector": {"matchLabels": {"kubernetes.io/hostname": "b"}}}
    }
    assert set(agent.agents(objects(clusters=[selecting]))) == {"b"}
