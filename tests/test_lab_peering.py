"""BGP and mesh as `fleet lab status` tells them, from the objects that the program declares."""

from typing import Any

from infra.addresses import pool_specs
from infra.bgp import advertisement_spec, cluster_spec
from infra.clustermesh import api_service
from lab import peering
from tests.sites import three_sites

SITE = three_sites().sites["franca"]


def objects(*what: str) -> list[dict[str, Any]]:
    """As an API server has them after an update of Franca, with a mesh."""
    specs = {
        "ciliumbgpclusterconfigs": cluster_spec(SITE.bgp, str(SITE.vyos.lan_address)),
        "ciliumbgpadvertisements": advertisement_spec(),
    }
    if what[0] == "ciliumloadbalancerippools":
        return [{"metadata": {"name": name}, "spec": spec} for name, spec in pool_specs(SITE.lb).items()]
    if what[0] in specs:
        return [{"metadata": {"name": "site"}, "spec": specs[what[0]]}]
    if what[0] == "secrets":
        assert "metadata.name=cilium-clustermesh" in what
        return [{"metadata": {}, "data": {"cluster-sp": "c2VjcmV0", "cluster-sp.etcd-client.key": "c2VjcmV0"}}]
    assert f"metadata.name={api_service(SITE.lb)['metadata']['name']}" in what
    return [{"metadata": {}, "spec": {}, "status": {"loadBalancer": {"ingress": [{"ip": "192.168.0.241"}]}}}]


def test_peers_advertisements_pools_and_remote_clusters_are_told() -> None:
    assert peering.found(objects) == {
        "bgp": ["AS 65001 to 192.168.0.1 AS 65001"],
        "advertised": ["PodCIDR", "Service, LoadBalancerIP"],
        "pools": ["site 192.168.0.243 to 192.168.0.250", *(f"fixed 192.168.0.{last}" for last in (240, 241, 242))],
        "mesh": ["API 192.168.0.241", "remote cluster-sp"],
    }


def test_no_value_of_a_secret_is_told() -> None:
    assert "c2VjcmV0" not in str(peering.found(objects))


def test_a_cluster_without_any_of_it_shows_a_dash() -> None:
    nothing = peering.found(lambda *_: [])
    assert peering.lines(nothing) == "-"
    assert "bgp AS 65001 to 192.168.0.1 AS 65001\n" in peering.lines(peering.found(objects))
