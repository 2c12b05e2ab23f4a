"""The Proxmox VE API of a site: fakepve, adjusted to what the real provider needs, with one node for each host.

`fake` holds the adjustments, `site` what the lab's daemon uses. Left out: the shell of the hosts (SSH), which the
program does not use.
"""

from lab.pve.site import SitePve, Storage

__all__ = ["SitePve", "Storage"]
