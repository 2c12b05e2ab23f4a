"""Which VyOS paths the program may write, and what stands at their end. Everything else is refused.

A template is a `set` line with types in angle brackets; `=` marks a value, `*` several of them. Source: the command
definitions of VyOS 1.4 and 1.5; a path is in both unless the template says otherwise.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from ipaddress import AddressValueError, IPv4Address, IPv4Interface, IPv4Network, NetmaskValueError

from infra.vyos.statements import Statement, command

TEMPLATES = """
interfaces wireguard <wg> address* <host>
interfaces wireguard <wg> description= <text>
interfaces wireguard <wg> mtu= <mtu>
interfaces wireguard <wg> port= <port>
interfaces wireguard <wg> private-key= <key>
interfaces wireguard <wg> ip adjust-mss= <mss>
interfaces wireguard <wg> peer <peer> public-key= <key>
interfaces wireguard <wg> peer <peer> allowed-ips* <network>
interfaces wireguard <wg> peer <peer> address= <address>
interfaces wireguard <wg> peer <peer> host-name= <hostname> @1.5
interfaces wireguard <wg> peer <peer> port= <port>
interfaces wireguard <wg> peer <peer> persistent-keepalive= <seconds>
interfaces wireguard <wg> peer <peer> description= <text>
protocols static route <network> next-hop <address>
protocols static route <network> next-hop <address> distance= <distance>
protocols static route <network> blackhole distance= <distance>
policy prefix-list <list> rule <policyrule> action= <permission>
policy prefix-list <list> rule <policyrule> prefix= <network>
policy prefix-list <list> rule <policyrule> ge= <length>
policy prefix-list <list> rule <policyrule> le= <length>
policy route-map <map> rule <policyrule> action= <permission>
policy route-map <map> rule <policyrule> match ip address prefix-list= <list>
protocols bgp system-as= <asn>
protocols bgp parameters router-id= <address>
protocols bgp parameters ebgp-requires-policy
protocols bgp address-family ipv4-unicast maximum-paths ibgp= <paths>
protocols bgp address-family ipv4-unicast maximum-paths ebgp= <paths>
protocols bgp peer-group <list> remote-as= <remoteas>
protocols bgp peer-group <list> passive
protocols bgp peer-group <list> password= <secret>
protocols bgp peer-group <list> graceful-restart= <restart>
protocols bgp peer-group <list> address-family ipv4-unicast route-map import= <map>
protocols bgp peer-group <list> address-family ipv4-unicast route-map export= <map>
protocols bgp peer-group <list> address-family ipv4-unicast maximum-prefix= <prefixes>
protocols bgp neighbor <address> peer-group= <list>
protocols bgp neighbor <address> description= <text>
protocols bgp neighbor <address> remote-as= <remoteas>
protocols bgp neighbor <address> update-source= <address>
protocols bgp neighbor <address> password= <secret>
protocols bgp neighbor <address> timers keepalive= <seconds>
protocols bgp neighbor <address> timers holdtime= <seconds>
protocols bgp neighbor <address> address-family ipv4-unicast route-map import= <map>
protocols bgp neighbor <address> address-family ipv4-unicast route-map export= <map>
firewall group network-group <group> network* <network>
firewall group address-group <group> address* <addressrange>
firewall ipv4 name <chain> default-action= <chainaction>
firewall ipv4 name <chain> description= <text>
firewall ipv4 name <chain> rule <rule> ...
firewall ipv4 forward filter rule <rule> ...
firewall ipv4 input filter rule <rule> ...
firewall zone <chain> default-action= <zoneaction>
firewall zone <chain> description= <text>
firewall zone <chain> intra-zone-filtering action= <permitted>
firewall zone <chain> interface* <interface> @1.4
firewall zone <chain> member interface* <interface> @1.5
firewall zone <chain> from <chain> firewall name= <chain>
nat destination rule <rule> description= <text>
nat destination rule <rule> protocol= <protocol>
nat destination rule <rule> destination address= <natmatch>
nat destination rule <rule> destination port= <ports>
nat destination rule <rule> translation address= <address>
nat source rule <rule> description= <text>
nat source rule <rule> outbound-interface name= <interface>
nat source rule <rule> source address= <natmatch>
nat source rule <rule> destination address= <natmatch>
nat source rule <rule> translation address= <translation>
"""

# Below a firewall rule, wherever the rule stands.
FIREWALL_RULE = """
action= <action>
description= <text>
jump-target= <chain>
protocol= <protocol>
state* <state>
inbound-interface name= <interface>
source address= <addressrange>
source group network-group= <group>
source group address-group= <group>
destination address= <addressrange>
destination port= <ports>
destination group address-group= <group>
icmp type-name= <icmptype>
connection-status nat= <nat>
"""


def _number(low: int, high: int) -> Callable[[str], bool]:
    return lambda text: text.isascii() and text.isdigit() and low <= int(text) <= high


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda text: text in words


def _matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


def _parses(kind: Callable[[str], object]) -> Callable[[str], bool]:
    def check(text: str) -> bool:
        try:
            kind(text)
        except (AddressValueError, NetmaskValueError, ValueError):
            return False
        return True

    return check


def _is_range(text: str) -> bool:
    first, dash, last = text.partition("-")
    address = _parses(IPv4Address)
    if not dash:
        return address(text) or ("/" in text and _parses(IPv4Network)(text))
    return address(first) and address(last) and IPv4Address(first) <= IPv4Address(last)


# The place of a key or password that stands in no document; never applied as it is.
PLACEHOLDER = re.compile(r"@@[A-Z0-9_]+@@")
_KEY = re.compile(r"[A-Za-z0-9+/]{43}=")

TYPES: dict[str, Callable[[str], bool]] = {
    "wg": _matches(r"wg[0-9]+"),
    "interface": _matches(r"[a-z][a-z0-9.@-]{0,14}"),
    "host": lambda text: "/" in text and _parses(IPv4Interface)(text),
    "network": lambda text: "/" in text and _parses(IPv4Network)(text),
    "address": _parses(IPv4Address),
    "addressrange": _is_range,
    "natmatch": lambda text: _is_range(text.removeprefix("!")),
    "translation": lambda text: text == "masquerade" or _parses(IPv4Address)(text),
    "hostname": _matches(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?"),
    "text": lambda text: len(text) <= 255,
    "mtu": _number(68, 16000),
    "mss": lambda text: text == "clamp-mss-to-pmtu" or _number(536, 65535)(text),
    "port": _number(1, 65535),
    "ports": _matches(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*"),
    "key": lambda text: bool(_KEY.fullmatch(text) or PLACEHOLDER.fullmatch(text)),
    "secret": _matches(r"[^ ]{1,80}"),
    "peer": _matches(r"[^ ]{1,100}"),
    "seconds": _number(1, 65535),
    "distance": _number(1, 255),
    "list": _matches(r"[-_a-zA-Z0-9]+"),
    "map": _matches(r"[-_a-zA-Z0-9.+]+"),
    "group": _matches(r"[-_a-zA-Z0-9.+]+"),
    "chain": _matches(r"[a-zA-Z0-9][\w.-]*"),
    "policyrule": _number(1, 65535),
    "rule": _number(1, 999999),
    "permission": _one_of("permit", "deny"),
    "length": _number(0, 32),
    "asn": _number(1, 4294967294),
    "remoteas": lambda text: text in ("internal", "external") or _number(1, 4294967294)(text),
    "restart": _one_of("enable", "disable", "restart-helper"),
    "paths": _number(1, 256),
    "prefixes": _number(1, 4294967295),
    "action": _one_of("accept", "drop", "reject", "return", "continue", "jump"),
    "chainaction": _one_of("accept", "drop", "reject", "return", "continue"),
    "zoneaction": _one_of("drop", "reject"),
    "protocol": _one_of("tcp", "udp", "icmp"),
    "state": _one_of("new", "established", "related", "invalid"),
    "icmptype": _one_of("echo-request"),
    "permitted": _one_of("accept", "drop"),
    "nat": _one_of("destination", "source"),
}


@dataclass(frozen=True)
class Template:
    """One allowed path."""

    words: tuple[str, ...]  # literal, or `<type>`
    kind: str  # `flag`, `value` or `values`

    def fits(self, statement: Statement) -> bool:
        return len(statement) == len(self.words) and all(
            TYPES[word[1:-1]](given) if word[0] == "<" else word == given
            for word, given in zip(self.words, statement, strict=True)
        )


def _template(words: Iterable[str]) -> Template:
    listed = list(words)
    kind = "flag"
    if len(listed) > 1 and listed[-2][-1] in "=*":
        kind = "value" if listed[-2][-1] == "=" else "values"
        listed[-2] = listed[-2][:-1]
    return Template(tuple(listed), kind)


@cache
def templates(version: str) -> tuple[Template, ...]:
    """The allowed paths of a release line."""
    found = []
    for line in TEMPLATES.strip().splitlines():
        words = line.split()
        if words[-1].startswith("@") and words.pop() != f"@{version}":
            continue
        if words[-1] == "...":
            found += [_template([*words[:-1], *rest.split()]) for rest in FIREWALL_RULE.strip().splitlines()]
        else:
            found.append(_template(words))
    return tuple(found)


def template_of(statement: Statement, version: str) -> Template | None:
    """The path that a statement uses, or None where the release has no such path or no such value."""
    return next((one for one in templates(version) if one.fits(statement)), None)


def refused(statements: Iterable[Statement], version: str) -> list[Statement]:
    """The statements that the release line would not take."""
    return [statement for statement in statements if template_of(statement, version) is None]


def commands(statements: Iterable[Statement], version: str) -> list[str]:
    """The `set` lines. Raises ValueError for a statement that the release line has no path for."""
    lines = []
    for statement in statements:
        template = template_of(statement, version)
        if template is None:
            raise ValueError(f"VyOS {version} has no such path or takes no such value: {' '.join(statement)}")
        lines.append(command(statement, has_value=template.kind != "flag"))
    return lines
