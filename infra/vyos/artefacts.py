"""The rendered configuration of a site: all statements, and the files that hold them as `set` commands.

The files are merged into a configuration that is otherwise the site's own; none of them replaces one.
"""

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from infra.config import Fleet
from infra.config.loading import PROJECT_FILE
from infra.vyos.firewall import firewall_part
from infra.vyos.paths import commands
from infra.vyos.reach import links
from infra.vyos.routing import routing_part
from infra.vyos.statements import Statement
from infra.vyos.tunnel import tunnel_part

FOLDER = PurePosixPath("config/vyos")
PARTS: dict[str, Callable[[Fleet, str], Iterator[Statement]]] = {
    "wireguard": tunnel_part,
    "bgp": routing_part,
    "firewall": firewall_part,
}


def statements(fleet: Fleet, site_id: str) -> list[Statement]:
    """All statements of a site's router, in the order in which a person reads them."""
    return [statement for part in PARTS.values() for statement in part(fleet, site_id)]


def files(fleet: Fleet, site_id: str) -> dict[str, str]:
    """The text of each file of a site, by its path in the project (NET-16)."""
    version = fleet.sites[site_id].vyos.version
    sources = [
        PROJECT_FILE,
        *(f"Pulumi.{one}.yaml" for one in (site_id, *(link.peer_id for link in links(fleet, site_id)))),
    ]
    found = {}
    for part, render in PARTS.items():
        head = [
            f"# Router of {site_id}, VyOS {version}: {part}. Merged into its configuration, replaces none.",
            f"# Rendered from {', '.join(sources)}: ./fleet render {site_id} --write",
            "# Words between @@ stand for keys and passwords, which no document holds.",
        ]
        found[str(FOLDER / part / f"{site_id}.conf")] = "\n".join(
            [*head, *commands(render(fleet, site_id), version), ""]
        )
    return found
