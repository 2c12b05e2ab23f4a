"""Runbooks by topic: text that the layers render from the documents of a site."""

from cli.faults import Stop
from infra.config import Site
from infra.k3s.lxc_host import runbook

TOPICS = ("lxc-host",)


def text(site: Site, site_id: str, topic: str) -> str:
    """Raises Stop for an unknown topic, and for one that the site has nothing of."""
    if topic not in TOPICS:
        raise Stop(f"found no topic {topic}; expected one of {', '.join(TOPICS)}")
    parts = [runbook(container) for container in site.containers]
    if not parts:
        raise Stop(f"site {site_id} has no container; {topic} is for hosts of GPU containers")
    return "\n".join(parts)
