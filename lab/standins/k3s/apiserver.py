"""The real kube-apiserver of a server, with K3s' settings and a small appetite."""

import base64
from pathlib import Path

from .children import Child, binary
from .etcd import LOCAL
from .kubeapi import KubeApi
from .network import first_address
from .paths import Paths, write
from .settings import Settings, component_args

PORT = 6444
URL = f"https://127.0.0.1:{PORT}"
_MEMORY = {"GOGC": "50", "GOMEMLIMIT": "260MiB", "GOMAXPROCS": "2"}


async def start(paths: Paths, settings: Settings, address: str) -> Child:
    tls = paths.tls
    own = {
        "etcd-servers": LOCAL,
        "etcd-cafile": str(tls / "etcd/server-ca.crt"),
        "etcd-certfile": str(tls / "etcd/client.crt"),
        "etcd-keyfile": str(tls / "etcd/client.key"),
        "bind-address": "127.0.0.1",
        "secure-port": str(PORT),
        "advertise-address": address,
        # upstream would publish port 6444 of each server; controllers.py publishes 6443, as K3s' own patch does
        "endpoint-reconciler-type": "none",
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "allow-privileged": "true",
        "client-ca-file": str(tls / "client-ca.crt"),
        "tls-cert-file": str(tls / "serving-kube-apiserver.crt"),
        "tls-private-key-file": str(tls / "serving-kube-apiserver.key"),
        "kubelet-client-certificate": str(tls / "client-kube-apiserver.crt"),
        "kubelet-client-key": str(tls / "client-kube-apiserver.key"),
        "requestheader-client-ca-file": str(tls / "request-header-ca.crt"),
        "requestheader-allowed-names": "system:auth-proxy",
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": str(tls / "client-auth-proxy.crt"),
        "proxy-client-key-file": str(tls / "client-auth-proxy.key"),
        "service-account-issuer": f"https://kubernetes.default.svc.{settings.text('cluster-domain')}",
        "api-audiences": f"https://kubernetes.default.svc.{settings.text('cluster-domain')},k3s",
        "service-account-key-file": str(tls / "service.key"),
        "service-account-signing-key-file": str(tls / "service.current.key"),
        "service-cluster-ip-range": ",".join(settings.items("service-cidr")),
        "service-node-port-range": settings.text("service-node-port-range"),
        "enable-admission-plugins": "NodeRestriction",
        "enable-bootstrap-token-auth": "true",
        "profiling": "false",
        "default-watch-cache-size": "30",
        "max-requests-inflight": "200",
        "max-mutating-requests-inflight": "100",
    }
    encryption = paths.cred / "encryption-config.json"
    if encryption.exists():
        own["encryption-provider-config"] = str(encryption)
    argv = [binary("kube-apiserver"), *component_args(own, settings.items("kube-apiserver-arg"))]
    return await Child.start("kube-apiserver", argv, paths.log("kube-apiserver"), _MEMORY)


def admin(paths: Paths) -> KubeApi:
    return identity(paths, "client-admin")


def identity(paths: Paths, certificate: str) -> KubeApi:
    tls = paths.tls
    return KubeApi.from_files(URL, tls / "server-ca.crt", tls / f"{certificate}.crt", tls / f"{certificate}.key")


def service_address(settings: Settings) -> str:
    """First address of the Service range, that of the Service `kubernetes`."""
    return first_address(settings.items("service-cidr")[0], 1)


def write_component_kubeconfigs(paths: Paths) -> None:
    for name in ("admin", "controller", "scheduler"):
        tls = paths.tls
        write(
            paths.cred / f"{name}.kubeconfig",
            _KUBECONFIG.format(
                authority=f"certificate-authority: {tls / 'server-ca.crt'}",
                server=URL,
                certificate=f"client-certificate: {tls / f'client-{name}.crt'}",
                key=f"client-key: {tls / f'client-{name}.key'}",
            ),
        )


def write_user_kubeconfig(paths: Paths, settings: Settings) -> Path:
    """The file for people: certificates embedded, server on the loopback address."""

    def embedded(name: str) -> str:
        return base64.b64encode((paths.tls / name).read_bytes()).decode()

    target = Path(settings.text("write-kubeconfig"))
    write(
        target,
        _KUBECONFIG.format(
            authority=f"certificate-authority-data: {embedded('server-ca.crt')}",
            server=f"https://127.0.0.1:{settings.text('https-listen-port')}",
            certificate=f"client-certificate-data: {embedded('client-admin.crt')}",
            key=f"client-key-data: {embedded('client-admin.key')}",
        ),
    )
    target.chmod(int(settings.text("write-kubeconfig-mode"), 8))
    return target


_KUBECONFIG = """apiVersion: v1
clusters:
- cluster:
    {authority}
    server: {server}
  name: default
contexts:
- context:
    cluster: default
    user: default
  name: default
current-context: default
kind: Config
preferences: {{}}
users:
- name: default
  user:
    {certificate}
    {key}
"""
