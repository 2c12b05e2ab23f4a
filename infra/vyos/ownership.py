"""What of a running VyOS configuration is the program's, and what would change there.

A difference deletes only below names of ours, in tunnels and neighbors that documents name or that carry our mark, and
rules that do. Routes and global BGP settings are set and never deleted: a site may have had them before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from infra.vyos.paths import PLACEHOLDER, template_of
from infra.vyos.reach import BAND, MARK, PREFIX
from infra.vyos.statements import Statement

# Of a peer, set by people at both ends: neither rendered nor deleted.
_ROUTERS_OWN = "preshared-key"


@dataclass(frozen=True)
class Difference:
    """What to delete first (whole subtrees) and to set then, and why a person has to look before."""

    delete: tuple[Statement, ...]
    set: tuple[Statement, ...]
    obstacles: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.delete or self.set)

    @property
    def open(self) -> tuple[Statement, ...]:
        """Statements to set whose value stands in no document."""
        return tuple(statement for statement in self.set if is_open(statement))


def is_open(statement: Statement) -> bool:
    """Whether a person has to put a key or password in."""
    return PLACEHOLDER.fullmatch(statement[-1]) is not None


def key_of(statement: Statement) -> str:
    """The stack's key of what a person puts in: `@@WG0_PRIVATE_KEY@@` is `wg0PrivateKey`."""
    first, *rest = statement[-1].strip("@").lower().split("_")
    return first + "".join(word.capitalize() for word in rest)


def difference(running: Iterable[Statement], wanted: Iterable[Statement], version: str) -> Difference:
    """What would make the owned part of `running` say what `wanted` does. Keys and passwords are not compared."""
    there, here = list(dict.fromkeys(running)), list(wanted)
    owner = _Owner(there, here)
    wanted_starts, running_starts = _starts(here), _starts(there)
    kept_leaves = {statement[:-1] for statement in here if is_open(statement)}
    present_leaves = {statement[:-1] for statement in there}

    taken = [rule for rule in dict.fromkeys(map(rule_of, here)) if rule in running_starts and owner.is_theirs(rule)]
    missing = [
        statement
        for statement in here
        if rule_of(statement) not in taken
        and statement not in running_starts
        and not (is_open(statement) and statement[:-1] in present_leaves)
    ]
    roots = {
        statement: root
        for statement in there
        if statement not in wanted_starts and statement[:-1] not in kept_leaves and (root := owner.root(statement))
    }
    # Setting a leaf of one value replaces it.
    replaced = {one[:-1] for one in missing if (path := template_of(one, version)) and path.kind == "value"}
    blocked = _starts(statement for statement in there if statement not in roots) | wanted_starts
    delete: dict[Statement, None] = {}
    for statement, root in roots.items():
        lengths = range(len(root), len(statement) + 1)
        cut = next((statement[:length] for length in lengths if statement[:length] not in blocked), statement)
        if statement[:-1] not in replaced and cut[-1] != _ROUTERS_OWN:
            delete[cut] = None
    return Difference(tuple(delete), tuple(missing), tuple(_obstacles(taken, running_starts, here)))


def _starts(statements: Iterable[Statement]) -> set[Statement]:
    return {statement[:length] for statement in statements for length in range(1, len(statement) + 1)}


class _Owner:
    """Which statements of a running configuration are ours."""

    def __init__(self, there: list[Statement], here: list[Statement]) -> None:
        self._interfaces = {one[2] for one in here if one[:2] == ("interfaces", "wireguard")}
        self._neighbors = {one[3] for one in here if one[:3] == ("protocols", "bgp", "neighbor")}
        self._marked = set()
        for one in there:
            if one[-2:-1] == ("description",) and one[-1].startswith(MARK):
                self._marked.add(one[:-2])
                if one[:2] == ("interfaces", "wireguard") and len(one) == 5:
                    self._interfaces.add(one[2])
            if one[:3] == ("protocols", "bgp", "neighbor") and _ours(one[-1]):  # its peer group or a route map
                self._neighbors.add(one[3])

    def root(self, statement: Statement) -> Statement | None:
        """The start of what is wholly ours around a statement, or None."""
        match statement:
            case ("interfaces", "wireguard", name, _, *_) if name in self._interfaces:
                length = 3
            case ("policy", "prefix-list" | "route-map", name, *_) if _ours(name):
                length = 3
            case ("protocols", "bgp", "neighbor", address, _, *_) if address in self._neighbors:
                length = 4
            case ("protocols", "bgp", "peer-group", name, *_) if _ours(name):
                length = 4
            case ("firewall", "group", _, name, *_) | ("firewall", "ipv4", "name", name, *_) if _ours(name):
                length = 4
            case ("firewall", "zone", zone, *_) if zone == PREFIX:
                length = 3
            case ("firewall", "zone", _, "from", source, *_) if source == PREFIX:
                length = 5
            case _:
                rule = rule_of(statement)
                return rule if rule in self._marked else None
        return statement[:length]

    def is_theirs(self, rule: Statement) -> bool:
        """Whether a rule with a number of ours, which the router has, is the site's own."""
        return not _ours(rule[3]) and rule not in self._marked


def rule_of(statement: Statement) -> Statement | None:
    """The rule among the site's own rules, in our band, that a statement belongs to."""
    match statement:
        case ("firewall", "ipv4", _, _, "rule", number, *_) if _in_band(number):
            return statement[:6]
        case ("nat", "source" | "destination", "rule", number, *_) if _in_band(number):
            return statement[:4]
    return None


def _ours(name: str) -> bool:
    return name.startswith(f"{PREFIX}-")


def _in_band(number: str) -> bool:
    return number.isascii() and number.isdigit() and int(number) in BAND


def _obstacles(taken: Iterable[Statement], running: set[Statement], here: list[Statement]) -> Iterator[str]:
    """Where the site's own configuration does not fit the documents."""
    for rule in taken:
        yield f"{' '.join(rule)} is the site's own (no '{MARK.strip()}' in its description): give it another number"
    for name in dict.fromkeys(one[2] for one in here if one[:2] == ("firewall", "zone") and one[2] != PREFIX):
        if ("firewall", "zone", name) not in running:
            yield f"there is no zone {name}: correct vyos.zones"
    zones = sorted({one[2] for one in running if one[:2] == ("firewall", "zone") and len(one) > 2} - {PREFIX})
    if zones and not any(one[:2] == ("firewall", "zone") for one in here):
        yield f"there are zones ({', '.join(zones)}), which judge packets as well: set vyos.firewall to zones"
    for name in dict.fromkeys(one[3] for one in here if one[:3] == ("firewall", "ipv4", "name") and not _ours(one[3])):
        if ("firewall", "ipv4", "name", name) not in running:
            yield f"there is no chain {name}: correct vyos.zones"
