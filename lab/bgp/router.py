"""A router's rendered configuration, as GoBGP understands it.

Reads statements, the words of a `set` command each, below `protocols bgp`, `policy prefix-list` and `policy route-map`.
Whatever stands there and has no meaning here is an error: nothing that decides over a route is passed over. GoBGP knows
one policy for all neighbours, so each route map becomes statements that match the neighbours it is set for.
Source: the command reference of VyOS 1.4 and 1.5; FRR on route maps; GoBGP on policies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from infra.vyos.routing import PASSWORD_MARK
from infra.vyos.statements import Statement
from lab import LabError

FAMILY = ("address-family", "ipv4-unicast")
RECONNECT_S = 5  # of the lab: a person waits for it
# Words that say nothing about which routes go where.
WITHOUT_MEANING = ("description", "maximum-paths", "log-neighbor-changes", "bfd")
# Words of a neighbor or group, and the field that takes their value.
_VALUES: dict[Statement, tuple[str, type[str] | type[int]]] = {
    ("peer-group",): ("group", str),
    ("remote-as",): ("remote_as", str),
    ("update-source",): ("source", str),
    ("password",): ("password", str),
    ("ebgp-multihop",): ("hops", int),
    ("timers", "keepalive"): ("keepalive", int),
    ("timers", "holdtime"): ("hold", int),
    ("maximum-prefix",): ("maximum", int),
}
_SWITCHES: dict[Statement, str] = {("passive",): "passive", ("graceful-restart", "restart-helper"): "helper"}


class Untranslatable(LabError):
    """A statement that a speaker of the lab cannot carry out."""


@dataclass
class _Entry:
    """A rule of a prefix list or route map."""

    action: str = ""
    prefix: str = ""
    ge: int = 0
    le: int = 0
    prefix_list: str = ""


@dataclass
class _Neighbor:
    """A neighbor or a peer group; what a neighbor does not say its group does."""

    group: str = ""
    remote_as: str = ""
    source: str = ""
    password: str = ""
    passive: bool = False
    helper: bool = False
    hops: int = 0
    maximum: int = 0
    keepalive: int = 0
    hold: int = 0
    maps: dict[str, str] = field(default_factory=dict)  # by direction: import, export
    family: bool = False

    def over(self, group: "_Neighbor") -> "_Neighbor":
        merged = {name: getattr(self, name) or getattr(group, name) for name in vars(self)}
        return _Neighbor(**{**merged, "maps": {**group.maps, **self.maps}})


@dataclass
class _Router:
    asn: int = 0
    router_id: str = ""
    strict: bool = False  # an external neighbor without a route map exchanges nothing
    groups: dict[str, _Neighbor] = field(default_factory=dict)
    neighbors: dict[str, _Neighbor] = field(default_factory=dict)
    prefix_lists: dict[str, dict[int, _Entry]] = field(default_factory=dict)
    route_maps: dict[str, dict[int, _Entry]] = field(default_factory=dict)


def configuration(statements: Iterable[Statement], password: str = "") -> dict[str, Any]:
    """GoBGP's configuration. `password` takes the place of the mark that the rendered text has for it."""
    router = _Router()
    for words in statements:
        if words[:2] == ("protocols", "bgp"):
            _bgp(router, words[2:])
        elif words[:2] == ("policy", "prefix-list"):
            _entry(router.prefix_lists, words[2:])
        elif words[:2] == ("policy", "route-map"):
            _entry(router.route_maps, words[2:])
    if not router.asn:
        raise Untranslatable("the rendered configuration has no protocols bgp system-as; expected one")
    members = {address: _complete(router, address) for address in router.neighbors}
    return {
        "global": {
            "config": {"as": router.asn, "router-id": router.router_id, "port": 179},
            # Whatever no statement decides is neither taken nor passed on.
            "apply-policy": {
                "config": {
                    "import-policy-list": ["import"],
                    "default-import-policy": "reject-route",
                    "export-policy-list": ["export"],
                    "default-export-policy": "reject-route",
                }
            },
        },
        "neighbors": [_neighbor(router, address, one, password) for address, one in members.items()],
        "defined-sets": {
            "prefix-sets": [_prefix_set(name, rules) for name, rules in router.prefix_lists.items()],
            "neighbor-sets": [
                {"neighbor-set-name": address, "neighbor-info-list": [f"{address}/32"]} for address in members
            ],
        },
        "policy-definitions": [
            {"name": direction, "statements": list(_statements(router, members, direction))}
            for direction in ("import", "export")
        ],
    }


def _bgp(router: _Router, words: Statement) -> None:
    match words:
        case ("system-as", asn):
            router.asn = int(asn)
        case ("parameters", "router-id", address):
            router.router_id = address
        case ("parameters", "ebgp-requires-policy"):
            router.strict = True
        case ("peer-group", name, *rest):
            _setting(router.groups.setdefault(name, _Neighbor()), tuple(rest), words)
        case ("neighbor", address, *rest):
            _setting(router.neighbors.setdefault(address, _Neighbor()), tuple(rest), words)
        case _:
            if not {*words} & {*WITHOUT_MEANING}:
                raise Untranslatable(f"protocols bgp {' '.join(words)}: the lab's router knows no such statement")


def _setting(one: _Neighbor, words: Statement, whole: Statement) -> None:
    if words[:2] == FAMILY:
        one.family = True
        words = words[2:]
    if words[:-1] in _VALUES:
        name, kind = _VALUES[words[:-1]]
        setattr(one, name, kind(words[-1]))
    elif words in _SWITCHES:
        setattr(one, _SWITCHES[words], True)
    elif words[:1] == ("route-map",) and len(words) == 3 and words[1] in ("import", "export"):
        one.maps[words[1]] = words[2]
    elif words and words[0] not in WITHOUT_MEANING:
        raise Untranslatable(f"protocols bgp {' '.join(whole)}: the lab's router knows no such statement")


def _entry(into: dict[str, dict[int, _Entry]], words: Statement) -> None:
    match words:
        case (_, "description", _):
            return
        case (name, "rule", number, *rest):
            entry = into.setdefault(name, {}).setdefault(int(number), _Entry())
        case _:
            raise Untranslatable(f"policy {' '.join(words)}: the lab's router knows no such statement")
    match rest:
        case ["action", ("permit" | "deny") as action]:
            entry.action = action
        case ["prefix", prefix]:
            entry.prefix = prefix
        case ["ge", length]:
            entry.ge = int(length)
        case ["le", length]:
            entry.le = int(length)
        case ["match", "ip", "address", "prefix-list", listed]:
            entry.prefix_list = listed
        case ["description", _]:
            pass
        case _:
            raise Untranslatable(f"policy {' '.join(words)}: the lab's router knows no such statement")


def _complete(router: _Router, address: str) -> _Neighbor:
    own = router.neighbors[address]
    if own.group and own.group not in router.groups:
        raise Untranslatable(f"neighbor {address}: found no peer-group {own.group}; VyOS would refuse that")
    one = own.over(router.groups[own.group]) if own.group else own
    if not one.remote_as:
        raise Untranslatable(
            f"neighbor {address}: found no remote-as, of its own or of its group; VyOS would refuse that"
        )
    for direction, name in one.maps.items():
        if name not in router.route_maps:
            raise Untranslatable(
                f"neighbor {address}: found no route-map {name} for {direction}; VyOS would refuse that"
            )
    return one


def _neighbor(router: _Router, address: str, one: _Neighbor, password: str) -> dict[str, Any]:
    asn = router.asn if one.remote_as == "internal" else int(one.remote_as)
    secret = password if one.password == PASSWORD_MARK else one.password
    timers = {"connect-retry": RECONNECT_S, "idle-hold-time-after-reset": RECONNECT_S}
    if one.keepalive and one.hold:  # VyOS takes them as a pair
        timers |= {"keepalive-interval": one.keepalive, "hold-time": one.hold}
    family: dict[str, Any] = {"config": {"afi-safi-name": "ipv4-unicast", "enabled": one.family}}
    if one.maximum:
        family["prefix-limit"] = {"config": {"max-prefixes": one.maximum}}
    if one.helper:
        family["mp-graceful-restart"] = {"config": {"enabled": True}}
    return {
        "config": {"neighbor-address": address, "peer-as": asn, "auth-password": secret},
        "timers": {"config": timers},
        "transport": {"config": {"passive-mode": one.passive, **({"local-address": one.source} if one.source else {})}},
        "ebgp-multihop": {"config": {"enabled": one.hops > 1, "multihop-ttl": one.hops}},
        "graceful-restart": {"config": {"enabled": one.helper, "helper-only": one.helper}},
        "afi-safis": [family] if one.family else [],
    }


def _prefix_set(name: str, rules: Mapping[int, _Entry]) -> dict[str, Any]:
    prefixes = []
    for number, rule in sorted(rules.items()):
        length = int(rule.prefix.partition("/")[2] or -1)
        if rule.action != "permit" or length < 0:
            raise Untranslatable(f"prefix-list {name} rule {number}: expected action permit and a prefix")
        lowest = rule.ge or length
        highest = rule.le or (32 if rule.ge else length)
        prefixes.append({"ip-prefix": rule.prefix, "masklength-range": f"{lowest}..{highest}"})
    return {"prefix-set-name": name, "prefix-list": prefixes}


def _statements(router: _Router, members: Mapping[str, _Neighbor], direction: str) -> Iterable[dict[str, Any]]:
    """Those of each neighbour end with one for all the rest, so that none falls through to another's."""
    for address, one in members.items():
        name = one.maps.get(direction)
        external = one.remote_as not in ("internal", str(router.asn))
        rules = sorted(router.route_maps[name].items()) if name else []
        for number, rule in rules:
            if rule.action not in ("permit", "deny"):
                raise Untranslatable(f"route-map {name} rule {number}: found no action; VyOS would refuse that")
            if rule.prefix_list and rule.prefix_list not in router.prefix_lists:
                raise Untranslatable(f"route-map {name} rule {number}: found no prefix-list {rule.prefix_list}")
            yield _decision(f"{direction}-{address}-{number}", address, rule.prefix_list, rule.action == "permit")
        free = name is None and not (external and router.strict)
        yield _decision(f"{direction}-{address}-rest", address, "", free)


def _decision(name: str, neighbor: str, prefix_list: str, permit: bool) -> dict[str, Any]:
    conditions: dict[str, Any] = {"match-neighbor-set": {"neighbor-set": neighbor, "match-set-options": "any"}}
    if prefix_list:
        conditions["match-prefix-set"] = {"prefix-set": prefix_list, "match-set-options": "any"}
    return {
        "name": name,
        "conditions": conditions,
        "actions": {"route-disposition": "accept-route" if permit else "reject-route"},
    }
