"""Runbooks by topic: text that is rendered from the documents of a site."""

from cli import hand_over
from cli.faults import Stop
from infra.config import Site
from infra.k3s import lxc_host

TOPICS = ("lxc-host", "hand-over")


def text(site: Site, site_id: str, topic: str) -> str:
    """Raises Stop for an unknown topic, and for one that the site has nothing of."""
    if topic not in TOPICS:
        raise Stop(f"found no topic {topic}; expected one of {', '.join(TOPICS)}")
    if topic == "hand-over":
        held = [guest for guest in site.guests.values() if guest.existing and guest.older_project]
        if not held:
            raise Stop(f"no guest of site {site_id} names an older_project; {topic} is for guests that one holds")
        return "\n".join(hand_over.runbook(site_id, guest) for guest in held)
    parts = [lxc_host.runbook(container) for container in site.containers]
    if not parts:
        raise Stop(f"site {site_id} has no container; {topic} is for hosts of GPU containers")
    return "\n".join(parts)
