"""Runbook `proxy-cutover`: ingress moves from an old proxy guest to Traefik of the main cluster (MIG-08).

The proxy belongs to people: the program names it and never touches it.
"""

from cli.steps import checklist, here, page, shell
from infra.config import Fleet

OPERATE = "/opt/vyatta/bin/vyatta-op-cmd-wrapper"


def runbook(fleet: Fleet, site_id: str) -> str:
    site = fleet.sites[site_id]
    name = site.traefik.legacy_proxy or ""
    proxy, vip, router = site.unmanaged_guests.get(name), site.lb.vips.traefik, site.vyos.lan_address
    known_address, known_vmid = proxy and proxy.address, proxy and proxy.vmid
    login = f'"root@{known_address or "${PROXY:?address of " + name + "}"}"'
    vmid = known_vmid or f'"${{VMID:?Proxmox id of {name}}}"'
    target = vip or "${VIP:?address of Traefik}"
    hosts = site.dns.records or (site.argocd.host,)
    before, saved = f"vyos-{site_id}-before-cutover.txt", "/config/config.boot.before-cutover"
    by_address = _probe(hosts, f'--resolve "$host:443:{target}" ')
    reboots = site.vyos.version in ("1.3", "1.4")
    return page(
        [
            f"# {name}: ingress moves to Traefik of the main cluster",
            f"Site {site_id}. The proxy serves until step 4, and stays, stopped, until the cut-over is confirmed. "
            "`traefik.legacy_proxy` stands in the document until then. Router and proxy are changed by a person alone.",
            checklist(
                [
                    (known_address is not None, f"address of {name}: {known_address or 'not known'}"),
                    (known_vmid is not None, f"Proxmox id of {name}: {known_vmid or 'not known'}"),
                    (vip is not None, f"lb.vips.traefik: {vip or 'not set'}"),
                    (site.traefik.main, "traefik.main: Traefik on the main cluster"),
                    (site.vyos.backup_ref is not None, f"vyos.backup_ref: {site.vyos.backup_ref or 'not set'}"),
                ]
            ),
            "## 1. Backups, the router's first",
            here(
                f"ssh vyos@{router} '{OPERATE} show configuration commands' > {before}",
                f"test -s {before}",
                f"grep 'nat destination' {before}",
                f"ssh vyos@{router} 'cp /config/config.boot {saved} && ls -l {saved}'",
            ),
            "Copy the saved file off the router and record it (NET-15): "
            f"`./fleet backup {site_id} --record vyos-archive:vyos=<where it is> --taken <time>`. Then the proxy, "
            "on its Proxmox host:",
            shell(f"qm snapshot {vmid} before-cutover"),
            "If not: no backup, no cut-over. The rules that the first block lists are those of step 4: note their "
            "numbers.",
            "## 2. Routes",
            "List what the proxy serves, put each route into Git below `clusters/`, and let Argo CD apply it. "
            "Certificates too.",
            shell(f"ssh {login} k3s kubectl get ingress,ingressroute,middleware -A"),
            "If not: a kind that is not there is no fault. A route that needs something on the proxy itself moves "
            "with it, or stays.",
            "## 3. Traefik answers",
            "By its address, past the router and public names:",
            here(*by_address),
            "Expected: for each name the code that the proxy gives today, with a valid certificate.",
            "If not: go no further, clients still reach the proxy. A timeout: the address is not announced. 404: its "
            "route is missing.",
            "## 4. The port forward",
            "RULES are the numbers from step 1. The block prints the lines to type at the router, in `configure`; then "
            "`compare`, `save`, `commit-confirm 10`, try from outside within ten minutes, `confirm`, `save`. On VyOS "
            f"{site.vyos.version} a commit that nobody confirms "
            + (
                "reboots the router into what was saved."
                if reboots
                else "is undone, by a reboot or a reload as set there."
            ),
            here(
                ': "${RULES:?numbers of the rules, for example 100 110}"',
                "for rule in $RULES; do",
                f'    echo "set nat destination rule $rule translation address {target}"',
                "done",
            ),
            here(*_probe(hosts, "")),
            "If not: do not confirm, the router goes back by itself. Later: the same lines with the address of the "
            "proxy.",
            "## 5. The old K3s stops, and stays",
            "For the whole time in which you may want to go back:",
            here(f"ssh {login} systemctl disable --now k3s </dev/null", *_probe(hosts, "")),
            f"If not: `systemctl enable --now k3s` on {name}, and the forward back as in step 4.",
            "## 6. Remove it",
            f"When the cut-over is confirmed: take `traefik.legacy_proxy` and `unmanaged_guests.{name}` out of "
            f"Pulumi.{site_id}.yaml, stop the guest, keep a last backup of it, and remove it in Proxmox by hand.",
            shell("./fleet check", f"./fleet preview {site_id}"),
            "Expected: nothing to change; the guest was never the program's.",
        ]
    )


def _probe(hosts: tuple[str, ...], options: str) -> tuple[str, ...]:
    return (
        "failed=",
        "while read -r host; do",
        f"""    curl -sS -o /dev/null -w "$host %{{http_code}}\\n" {options}"https://$host/" || failed=yes""",
        "done <<'HOSTS'",
        *hosts,
        "HOSTS",
        '[ -z "$failed" ]',
    )
