"""Started by the launcher of `pulumi-resource-proxmoxve`."""

from lab.providers import STANDS_IN_FOR
from lab.providers.proxmoxve.provider import Proxmox
from lab.providers.serving import serve

serve(Proxmox(), STANDS_IN_FOR["proxmoxve"])
