"""The guests that were there before the program: as people made them, by hand, with a K3s of their own.

What the documents state of them is true here; everything else differs from what the program would have made: devices,
tags, description, agent, boot order, the layout of K3s' files. Left out: a way to describe other differences. They are
fixed, one set for each guest in turn, so that a second lab is like the first.
"""

import hashlib
import json
from collections.abc import Iterator
from ipaddress import IPv4Interface

from infra.config import Cluster, Fleet, Lxc, Site, Vm
from lab.standins.k3s import VERSION
from lab.topology import ExistingGuest, HandMadeK3s

CLUSTER_INIT = "cluster-init"
UNIT, FILE = "unit", "file"


def existing_guests(fleet: Fleet, site_id: str) -> list[ExistingGuest]:
    """The guests of a site that its document calls existing, founders of a cluster before those that join them."""
    site = fleet.sites[site_id]
    guests = [guest for guest in site.guests.values() if guest.existing]
    k3s = dict(_k3s(site))
    order = list(k3s)
    guests.sort(key=lambda guest: order.index(guest.name) if guest.name in k3s else len(order))
    return [
        ExistingGuest(
            name=guest.name,
            vmid=guest.vmid,
            kind=guest.kind,
            host=guest.host,
            address=IPv4Interface(f"{guest.address}/{site.network.lan_cidr.prefixlen}"),
            gateway=site.vyos.lan_address,
            dns=tuple(str(server) for server in site.network.dns_servers),
            user=guest.login,
            devices=guest.devices if isinstance(guest, Lxc) else (),
            config=_vm_config(site, guest, at) if isinstance(guest, Vm) else _container_config(site, guest),
            k3s=k3s.get(guest.name),
        )
        for at, guest in enumerate(guests)
    ]


def _mac(guest: Vm | Lxc, at: int) -> str:
    digest = hashlib.sha256(f"{guest.vmid}/{at}".encode()).hexdigest().upper()
    return ":".join(("BC", "24", "11", digest[:2], digest[2:4], digest[4:6]))


def _vm_config(site: Site, guest: Vm, at: int) -> dict[str, str | int]:
    """A VM installed from an ISO image: no cloud-init; each second one was made in another year, in another way."""
    lan = f"bridge={site.network.bridge}" + (f",tag={site.network.vlan}" if site.network.vlan else "")
    config: dict[str, str | int] = {
        "name": guest.name,
        "cores": guest.cores,
        "memory": str(guest.memory_mib),
        "cpu": "host" if at % 2 == 0 else "x86-64-v3",
        "numa": 0,
        "onboot": 1,
        "ostype": "l26",
        "sockets": 1,
        "startup": f"order={guest.start_order},up=30",
        "description": "K3s do laboratorio. Disco aumentado de 32G a pedido; nao apagar!\n",
        "smbios1": f"uuid={_uuid(guest, 'smbios')}",
        "vmgenid": _uuid(guest, "generation"),
    }
    if at % 2 == 0:
        config |= {
            "agent": "1",
            "boot": "order=scsi0;ide2;net0",
            "ide2": "none,media=cdrom",
            "scsihw": "virtio-scsi-pci",
            "tags": "k3s;producao",
            # The storage network came first, the LAN was added later.
            "net0": f"virtio={_mac(guest, 0)},bridge=vmbr1,mtu=9000",
            "net1": f"virtio={guest.mac or _mac(guest, 1)},{lan},firewall=1",
        }
    else:
        config |= {
            "bios": "ovmf",
            "machine": "q35",
            "balloon": 0,
            "boot": "order=net0;scsi0",
            "scsihw": "virtio-scsi-single",
            "tags": "k3s",
            "net0": f"virtio={guest.mac or _mac(guest, 0)},{lan}",
            "efidisk0": f"{guest.disks[0].storage}:vm-{guest.vmid}-disk-9,efitype=4m,pre-enrolled-keys=1,size=4M",
        }
    for index, disk in enumerate(guest.disks):
        options = "discard=on,ssd=1," if at % 2 == 0 else "cache=writeback,"
        config[f"scsi{index}"] = f"{disk.storage}:vm-{guest.vmid}-disk-{index},{options}size={disk.size_gib}G"
    for index, mapping in enumerate(guest.pci_mappings):
        config[f"hostpci{index}"] = f"mapping={mapping}"
    return config


def _container_config(site: Site, guest: Lxc) -> dict[str, str | int]:
    lan = f"bridge={site.network.bridge}" + (f",tag={site.network.vlan}" if site.network.vlan else "")
    address = f"ip={guest.address}/{site.network.lan_cidr.prefixlen},gw={site.vyos.lan_address}"
    features = [name for name, on in (("keyctl", guest.keyctl), ("nesting", guest.nesting)) if on]
    config: dict[str, str | int] = {
        "hostname": guest.name,
        "arch": "amd64",
        "ostype": "ubuntu",
        "cores": guest.cores,
        "memory": guest.memory_mib,
        "swap": 8192,
        "onboot": 1,
        "unprivileged": 0 if guest.privileged else 1,
        "startup": f"order={guest.start_order},up=60",
        "description": "GPU do laboratorio, ver wiki antes de reiniciar\n",
        "tags": "gpu;vllm",
        "rootfs": f"{guest.disk.storage}:vm-{guest.vmid}-disk-0,size={guest.disk.size_gib}G",
        # The LAN came second here as well.
        "net0": f"name=eth1,bridge=vmbr1,hwaddr={_mac(guest, 0)},type=veth",
        "net1": f"name=eth0,{lan},{address},hwaddr={guest.mac or _mac(guest, 1)},type=veth",
    }
    if features:
        config["features"] = ",".join(f"{name}=1" for name in features)
    return config | {f"dev{index}": f"path={path},mode=0666" for index, path in enumerate(guest.devices)}


def _uuid(guest: Vm | Lxc, what: str) -> str:
    digest = hashlib.sha256(f"{guest.name}/{guest.vmid}/{what}".encode()).hexdigest()
    return "-".join((digest[:8], digest[8:12], f"4{digest[13:16]}", f"a{digest[17:20]}", digest[20:32]))


def _k3s(site: Site) -> Iterator[tuple[str, HandMadeK3s]]:
    """K3s on the existing guests of each cluster: the first server founds it, the others join that one."""
    for cluster in site.clusters.values():
        founder = None
        for role, names in (("server", cluster.servers), ("agent", cluster.agents)):
            for name in names:
                guest = site.guests[name]
                if not guest.existing or guest.current is None or guest.current.runs != role:
                    continue
                flags = _flags(cluster, guest, founder is None)
                yield (
                    name,
                    HandMadeK3s(
                        role=role,
                        version=VERSION,
                        flags=tuple(flags) if role == "server" else (),
                        joins=founder,
                        layout=UNIT if founder is None else FILE,
                    ),
                )
                founder = founder or name


def _flags(cluster: Cluster, guest: Vm | Lxc, founds: bool) -> Iterator[str]:
    current = guest.current
    assert current is not None
    if founds and current.datastore != "sqlite":
        yield CLUSTER_INIT
    if current.pod_cidr is not None:
        yield f"cluster-cidr={current.pod_cidr}"
    if current.service_cidr is not None:
        yield f"service-cidr={current.service_cidr}"
    if current.flannel_backend not in (None, "vxlan"):  # vxlan is what K3s does unasked, and nobody wrote it down
        yield f"flannel-backend={current.flannel_backend}"
    if current.secrets_encryption:
        yield "secrets-encryption"
    for component in sorted(cluster.disable if current.disable is None else current.disable):
        yield f"disable={component}"


def installation(k3s: HandMadeK3s, base: str, join: tuple[str, str] | None) -> str:
    """A shell script that installs K3s as its own installer does; `join` is the URL and the token of a server."""
    unit = "k3s" if k3s.role == "server" else "k3s-agent"
    command = ["/usr/local/bin/k3s", k3s.role]
    config: dict[str, object] = {}
    environment = ""
    if k3s.layout == UNIT:
        command += [f"'--{flag}'" for flag in k3s.flags]
        if join is not None:
            environment = f"K3S_URL='{join[0]}'\nK3S_TOKEN='{join[1]}'\n"
    else:
        for flag in k3s.flags:
            name, _, value = flag.partition("=")
            if name == "disable":
                listed = config.setdefault(name, [])
                assert isinstance(listed, list)
                listed.append(value)
            else:
                config[name] = value or True
        if join is not None:
            config |= {"server": join[0], "token": join[1]}
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in config.items())
    start = " \\\n    ".join(command)
    return f"""\
set -eu
if [ ! -x /usr/local/bin/k3s ]; then
    curl -fsS --max-time 60 -o /usr/local/bin/k3s.part '{base}/k3s/{k3s.version.replace("+", "%2B")}/k3s'
    chmod 0755 /usr/local/bin/k3s.part
    mv /usr/local/bin/k3s.part /usr/local/bin/k3s
fi
for name in kubectl crictl ctr; do [ -e /usr/local/bin/$name ] || ln -s k3s /usr/local/bin/$name; done
umask 077
if [ -n "{"yes" if text else ""}" ]; then
    mkdir -p /etc/rancher/k3s
    cat > /etc/rancher/k3s/config.yaml <<'CONFIG'
{text}CONFIG
fi
cat > /etc/systemd/system/{unit}.service.env <<'ENVIRONMENT'
{environment}ENVIRONMENT
umask 022
cat > /etc/systemd/system/{unit}.service <<'UNIT'
[Unit]
Description=Lightweight Kubernetes
Documentation=https://k3s.io
Wants=network-online.target
After=network-online.target

[Install]
WantedBy=multi-user.target

[Service]
Type={"notify" if k3s.role == "server" else "exec"}
EnvironmentFile=-/etc/default/%N
EnvironmentFile=-/etc/systemd/system/{unit}.service.env
KillMode=process
Delegate=yes
LimitNOFILE=1048576
TasksMax=infinity
TimeoutStartSec=0
Restart=always
RestartSec=5s
ExecStartPre=-/sbin/modprobe br_netfilter
ExecStartPre=-/sbin/modprobe overlay
ExecStart={start}
UNIT
systemctl daemon-reload
systemctl enable {unit}
systemctl start --no-block {unit}
{WAIT_FOR_SERVER if k3s.role == "server" else ""}"""


WAIT_FOR_SERVER = """\
tries=0
until [ "$(k3s kubectl get --raw /readyz 2>/dev/null)" = ok ] &&
    k3s kubectl get node "$(hostname)" -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' 2>/dev/null | grep -q True; do
    tries=$((tries + 1))
    [ $tries -lt 90 ] || { journalctl -u k3s -n 20 --no-pager -o cat >&2; exit 1; }
    sleep 1
done
"""  # noqa: E501  # a line of shell

INSTALLED = "[ ! -e /usr/local/bin/k3s ] || [ ! -d /var/lib/rancher/k3s ] || echo yes"
TOKEN = "cat /var/lib/rancher/k3s/server/node-token"
