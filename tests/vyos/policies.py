"""What a router does with routes, worked out from statements: prefix lists and route maps as FRR reads them."""

from collections.abc import Iterable
from ipaddress import IPv4Network

from infra.vyos.statements import Statement
from tests.vyos import below, value


def passes(found: Iterable[Statement], route_map: str, route: str) -> bool:
    """Whether a route map permits a route: the first rule that matches decides, and none is a denial."""
    found = list(found)
    rules = below(found, "policy", "route-map", route_map, "rule")
    for number in sorted({int(one[0]) for one in rules}):
        base = ("policy", "route-map", route_map, "rule", str(number))
        wanted = value(found, *base, "match", "ip", "address", "prefix-list")
        if wanted is None or _listed(found, wanted, IPv4Network(route)):
            return value(found, *base, "action") == "permit"
    assert rules, f"no route map {route_map}"
    return False


def _listed(found: list[Statement], name: str, route: IPv4Network) -> bool:
    rules = below(found, "policy", "prefix-list", name, "rule")
    assert rules, f"no prefix list {name}"
    for number in sorted({int(one[0]) for one in rules}):
        base = ("policy", "prefix-list", name, "rule", str(number))
        prefix = IPv4Network(value(found, *base, "prefix") or "")
        low, high = value(found, *base, "ge"), value(found, *base, "le")
        shortest = int(low) if low else prefix.prefixlen
        longest = int(high) if high else 32 if low else prefix.prefixlen
        assert prefix.prefixlen < shortest <= longest or not low, "FRR refuses the lengths"
        if route.subnet_of(prefix) and shortest <= route.prefixlen <= longest:
            return value(found, *base, "action") == "permit"
    return False


def neighbor_map(found: Iterable[Statement], neighbor: str, direction: str) -> str:
    """The route map of a neighbor, its own or its group's. Without one everything would pass."""
    found = list(found)
    base: Statement = ("protocols", "bgp", "neighbor", neighbor)
    group = value(found, *base, "peer-group")
    if group is not None:
        base = ("protocols", "bgp", "peer-group", group)
    name = value(found, *base, "address-family", "ipv4-unicast", "route-map", direction)
    assert name is not None
    return name
