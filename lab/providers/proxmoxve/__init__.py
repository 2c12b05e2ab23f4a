"""Stand-in for the `proxmoxve` provider: the guests and files that the program declares, on the real PVE API.

`tables` holds what the real schema says about defaults and replacements; `vm_config` and `container_config` translate;
the rest acts. Left out: everything else that Proxmox has, and `minTls`.
"""
