"""What root sets on the Proxmox host of a GPU container, because no API can: printed, checked, never written by us.

Source: Proxmox VE container configuration, `lxc.*` keys; K3s in a privileged container (LXC-06). The container's own
script (`scripts/verify_lxc.sh`) checks every line before K3s is installed.
"""

from infra.config import Lxc

MODULES = ("overlay", "br_netfilter", "nf_conntrack", "iptable_nat", "iptable_filter", "vxlan", "nvidia", "nvidia_uvm")
CHECKED_MODULES = ("overlay", "br_netfilter", "nf_conntrack")  # visible below /sys/module in every kernel build
SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "fs.inotify.max_user_instances": 8192,  # counted per user, and the container's root is the host's
    "fs.inotify.max_user_watches": 524288,
    "vm.overcommit_memory": 1,
}
# The network ones are the container's own, and K3s sets them; these are the host's.
CHECKED_SYSCTLS = {key: value for key, value in SYSCTLS.items() if not key.startswith("net.")}
RAW_LINES = (
    "lxc.apparmor.profile: unconfined",
    "lxc.cap.drop:",
    "lxc.mount.auto: proc:rw sys:rw",
)


def runbook(guest: Lxc) -> str:
    """Steps for root on the host, in order."""
    modules = "\n".join(MODULES)
    sysctls = "\n".join(f"{key} = {value}" for key, value in SYSCTLS.items())
    raw = "\n".join(RAW_LINES)
    nodes = "\n".join(f"    {device}" for device in guest.devices)
    return f"""\
# Host {guest.host}: what {guest.name} (container {guest.vmid}) needs before K3s

Run as root on {guest.host}. The program checks the result inside the container and changes nothing on the host.

1. Modules at boot, /etc/modules-load.d/k3s-container.conf:

{_indent(modules)}

   then: systemctl restart systemd-modules-load

2. Sysctls, /etc/sysctl.d/90-k3s-container.conf:

{_indent(sysctls)}

   then: sysctl --system
   The kubelet writes kernel.panic and kernel.panic_on_oops through proc:rw: they hold for the host as well.

3. Device nodes must exist before the container starts (nvidia-smi -L; nvidia-modprobe -c0 -u at boot):

{nodes}

4. Raw lines, appended once to /etc/pve/lxc/{guest.vmid}.conf (container stopped):

{_indent(raw)}

   Never `lxc.cgroup2.devices.allow: a`: the devices above are allowed one by one already.

5. pct start {guest.vmid}, then run the update of the site again.
"""


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
