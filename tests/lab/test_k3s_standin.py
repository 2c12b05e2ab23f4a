"""The K3s stand-in for real: servers and an agent, each in namespaces of its own on one bridge."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab import toolchain
from lab.standins.k3s import VERSION, settings, tokens
from lab.standins.k3s.bundle import bundle
from lab.standins.k3s.log import Fatal

VIP, TOKEN = "198.18.7.250", "correct-horse"
FIRST, SECOND, THIRD, AGENT, LONER = (f"198.18.7.{n}" for n in (11, 12, 13, 21, 31))
SETUP = """
set -e
hostname {name}
mount --make-rprivate /
mount --bind {folder}/etc /etc
mount --bind {folder}/lib /var/lib
mount -t tmpfs tmpfs /run
ip link set lo up
exec sleep 600
"""
VIP_POD = """
apiVersion: v1
kind: Pod
metadata: {name: kube-vip, namespace: kube-system}
spec:
  hostNetwork: true
  containers:
  - name: kube-vip
    image: ghcr.io/kube-vip/kube-vip:v1.2.3
    args: [manager]
    securityContext: {capabilities: {add: [NET_ADMIN, NET_RAW]}}
    volumeMounts: [{name: kubeconfig, mountPath: /etc/kubernetes/admin.conf}]
    env:
"""
VIP_ENV = {
    "vip_arp": "true", "port": "6443", "address": VIP, "vip_interface": "eth0", "vip_subnet": "32",
    "cp_enable": "true", "cp_namespace": "kube-system", "svc_enable": "false", "vip_leaderelection": "true",
    "vip_leasename": "plndr-cp-lock", "vip_leaseduration": "5", "vip_renewdeadline": "3", "vip_retryperiod": "1",
    "k8s_config_file": "/etc/kubernetes/admin.conf",
}  # fmt: skip


def vip_manifest() -> str:
    env = "".join(f'    - {{name: {name}, value: "{value}"}}\n' for name, value in VIP_ENV.items())
    node = "    - {name: vip_nodename, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}\n"
    volume = "  volumes: [{name: kubeconfig, hostPath: {path: /etc/rancher/k3s/k3s.yaml}}]\n"
    return VIP_POD + env + node + volume


def until(what: Callable[[], Any], seconds: float, pause: float = 0.5) -> Any:
    """First true value of `what`; fails the test when the time is over."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(pause)
    return found


def child_of(process: subprocess.Popen[bytes]) -> int:
    """Process id, as seen from here, of what `unshare --fork` or `nsenter --pid` started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return int(until(lambda: children.read_text().split(), 5, 0.02)[0])


class Machine:
    """One guest: namespaces that outlive K3s, its disk in a folder that outlives them."""

    def __init__(self, net: "Net", name: str, address: str) -> None:
        self.net, self.name, self.address = net, name, address
        self.folder = net.folder / f"{name}-{address}"
        self.k3s: subprocess.Popen[bytes] | None = None
        if not self.folder.exists():
            for part in ("etc/rancher/k3s", "lib/rancher"):
                (self.folder / part).mkdir(parents=True)
            for file in ("passwd", "group", "nsswitch.conf", "ld.so.cache", "os-release"):
                if Path("/etc", file).exists():
                    shutil.copy(Path("/etc", file), self.folder / "etc" / file)
            (self.folder / "etc/hosts").write_text(f"127.0.0.1 localhost {name}\n")
        command = ["unshare", "-n", "-m", "-p", "-u", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
        script = SETUP.format(name=name, folder=self.folder)
        self.process = subprocess.Popen([*net.enter, *command, script])
        net.machines.append(self)  # from here on it is the net that ends it, whatever happens
        self.pid = child_of(self.process)
        until(lambda: Path(f"/proc/{self.pid}/comm").read_text().strip() == "sleep", 5, 0.02)
        self.veth = f"v{address.rpartition('.')[2]}"
        net.run("ip", "link", "add", self.veth, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        net.run("ip", "link", "set", self.veth, "master", "br0", "up")
        self.run("ip", "address", "add", f"{address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", "198.18.7.1")

    @property
    def enter(self) -> list[str]:
        return [*self.net.user, "nsenter", "-t", str(self.pid), "-n", "-m", "-p", "-u"]

    @property
    def data(self) -> Path:
        return self.folder / "lib/rancher/k3s"

    def configure(self, **keys: object) -> None:
        content = {"token": TOKEN, "node-ip": self.address, **{k.replace("_", "-"): v for k, v in keys.items()}}
        (self.folder / "etc/rancher/k3s/config.yaml").write_text(json.dumps(content))

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + ("" if check else done.stderr)

    def kubectl(self, *words: str) -> str:
        return self.run(str(self.net.k3s), "kubectl", *words)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def start(self, role: str = "server", *flags: str) -> None:
        with (self.folder / "k3s.log").open("wb") as log:
            self.k3s = subprocess.Popen([*self.enter, str(self.net.k3s), role, *flags], stdout=log, stderr=log)

    def log(self) -> str:
        return (self.folder / "k3s.log").read_text()

    def refused(self, role: str = "server", *flags: str) -> str:
        """Starts K3s, which must end with status 1; the last line of its log."""
        self.start(role, *flags)
        assert self.k3s
        assert self.k3s.wait(30) == 1, self.log()
        return self.log().splitlines()[-1]

    def up(self) -> None:
        def done() -> bool:
            assert self.k3s and self.k3s.poll() is None, self.log()
            return "is up and running" in self.log()

        until(done, 60, 0.3)

    def stop(self) -> None:
        assert self.k3s
        os.kill(child_of(self.k3s), signal.SIGTERM)
        assert self.k3s.wait(20) == 0, self.log()

    def kill(self) -> None:
        """Pulls the plug: every process of the machine dies at once, and its interface with them."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)
        if self.k3s:
            self.k3s.wait(10)
        # the kernel takes its time to clear away a namespace; the name is wanted again at once
        subprocess.run(
            [*self.net.enter, "ip", "link", "delete", self.veth], capture_output=True, timeout=30, check=False
        )

    def addresses(self) -> str:
        return self.run("ip", "-4", "-o", "address", "show", "dev", "eth0")


class Net:
    """A bridge in a network namespace of its own: no way out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.k3s = folder / "k3s"
        bundle(self.k3s, Path(sys.executable))
        mapped = [] if os.geteuid() == 0 else ["-U", "-r"]
        command = ["unshare", *mapped, "-n", "-m", "--fork", "--kill-child", "sleep", "600"]
        self.process = subprocess.Popen(command)
        self.pid = child_of(self.process)
        self.user = ["nsenter", "-t", str(self.pid), "-U", "--preserve-credentials"] if mapped else []
        self.enter = [*self.user, "nsenter", "-t", str(self.pid), "-n", "-m"]
        self.machines: list[Machine] = []
        until(lambda: Path(f"/proc/{self.pid}/comm").read_text().strip() == "sleep", 5, 0.02)
        self.run("ip", "link", "add", "br0", "type", "bridge")
        self.run("ip", "address", "add", "198.18.7.1/24", "dev", "br0")
        self.run("ip", "link", "set", "br0", "up")

    def run(self, *command: str) -> str:
        return subprocess.run([*self.enter, *command], capture_output=True, text=True, timeout=30, check=True).stdout

    def machine(self, name: str, address: str) -> Machine:
        return Machine(self, name, address)

    def ping(self, address: str) -> bool:
        command = [*self.enter, "curl", "-sk", "--max-time", "1", f"https://{address}:6443/ping"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=False).stdout == "pong"

    def close(self) -> None:
        for machine in self.machines:
            if machine.process.poll() is None:
                machine.kill()
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)


def test_the_bundle_is_the_same_each_time_and_starts_by_itself(tmp_path: Path) -> None:
    one, two = tmp_path / "k3s", tmp_path / "other"
    for target in (one, two):
        bundle(target, Path(sys.executable))
    assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(two.read_bytes()).digest()
    first_line = subprocess.run([one, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    assert re.fullmatch(rf"k3s version {re.escape(VERSION)} \([0-9a-f]{{8}}\)", first_line)
    unknown = subprocess.run([one, "nonsense"], capture_output=True, text=True, check=False)
    assert unknown.returncode != 0 and "USAGE" in unknown.stdout


def test_later_files_replace_lists_unless_the_key_ends_in_a_plus(tmp_path: Path) -> None:
    main = tmp_path / "config.yaml"
    main.write_text("tls-san: [a]\nnode-label: [x=1]\nwrite-kubeconfig-mode: '0640'\ntoken: from-file\n")
    (tmp_path / "config.yaml.d").mkdir()
    (tmp_path / "config.yaml.d/10.yaml").write_text("tls-san+: [b]\nnode-label: [y=2]\n")
    found = settings.load("server", ["--config", str(main), "--token=from-flag"], {"K3S_TOKEN": "env", "K3S_URL": "u"})
    assert found.items("tls-san") == ["a", "b"]
    assert found.items("node-label") == ["y=2"]
    assert (found.text("token"), found.text("server")) == ("from-flag", "u")


def test_an_unknown_key_warns_a_server_and_stops_an_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = tmp_path / "config.yaml"
    main.write_text("disable: [traefik]\nno-such-key: 1\n")
    settings.load("server", [f"--config={main}"], {})
    assert "Unknown flag --no-such-key found in config.yaml, skipping" in capsys.readouterr().err
    with pytest.raises(Fatal, match="flag provided but not defined: -disable"):
        settings.load("agent", [f"--config={main}"], {})
    with pytest.raises(Fatal, match="flag provided but not defined: -no-such-flag"):
        settings.load("server", ["--no-such-flag"], {})


def test_arguments_of_components_replace_append_and_prepend() -> None:
    own = {"a": "1", "b": "2", "c": "3"}
    assert settings.component_args(own, ["a=9", "b+=8", "c-=7"]) == ["--a=9", "--b=2,8", "--c=7,3"]


@pytest.mark.parametrize("text", ["", "K10abc::server:x", "K10" + "a" * 64])
def test_malformed_tokens_are_refused(text: str) -> None:
    with pytest.raises(Fatal, match="token"):
        tokens.parse(text)


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with pytest.MonkeyPatch.context() as environment:
        if "FLEET_LAB_BIN" not in os.environ:
            environment.setenv("FLEET_LAB_BIN", str(toolchain.ensure(print)))
        made = Net(tmp_path_factory.mktemp("k3s"))
        yield made
        made.close()


@pytest.fixture(scope="module")
def first(net: Net) -> Machine:
    machine = net.machine("server-a", FIRST)
    machine.configure(cluster_init=True, **COMMON)
    place_vip(machine)
    machine.start()
    machine.up()
    return machine


@pytest.fixture(scope="module")
def loner(net: Net) -> Machine:
    machine = net.machine("loner", LONER)
    machine.configure(flannel_backend="none", node_label=["pool=gpu"], disable=["coredns", *COMMON["disable"]])
    machine.start()
    return machine


COMMON: dict[str, Any] = {"tls_san": [VIP], "disable": ["traefik", "servicelb", "metrics-server", "local-storage"]}


def place_vip(machine: Machine) -> None:
    folder = machine.data / "agent/pod-manifests"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kube-vip.yaml").write_text(vip_manifest())


def joins_first(machine: Machine, **keys: object) -> None:
    machine.configure(server=f"https://{FIRST}:6443", **{**COMMON, **keys})


def condition(node: Any, kind: str) -> tuple[str, str]:
    found: Any = next((c for c in node["status"].get("conditions", []) if c["type"] == kind), {})
    return found.get("status", ""), found.get("reason", "")


def ca_of(machine: Machine) -> str:
    return (machine.data / "server/tls/server-ca.crt").read_text()


@pytest.mark.lab
class TestCluster:
    """One story, in order: each test leaves the cluster as the next one finds it."""

    def test_the_first_server_founds_a_cluster(self, loner: Machine, first: Machine) -> None:
        assert "Managed etcd cluster initializing" in first.log()
        assert (first.data / "server/db/etcd/member/wal").is_dir()
        assert first.kubectl("get", "--raw", "/readyz") == "ok"
        node = until(lambda: first.get("nodes")["items"], 10)[0]
        until(lambda: condition(first.get("node", "server-a"), "EtcdIsVoter") == ("True", "MemberNotLearner"), 15)
        until(lambda: "node-role.kubernetes.io/etcd" in first.get("node", "server-a")["metadata"]["labels"], 10)
        assert node["status"]["nodeInfo"]["kubeletVersion"] == VERSION

    def test_the_listener_knows_its_callers(self, net: Net, first: Machine) -> None:
        def status(*words: str) -> str:
            url = f"https://{FIRST}:6443"
            return net.run("curl", "-sk", "-o", "/dev/null", "-w", "%{http_code}", *words[:-1], url + words[-1])

        assert net.ping(FIRST)
        assert status("/readyz") == "401"
        assert status("-H", "X-Remote-User: system:admin", "-H", "X-Remote-Group: system:masters", "/api") == "401"
        assert status("-u", f"node:{TOKEN}", "/v1-k3s/readyz") == "200"
        assert status("-u", f"node:{TOKEN}", "/v1-k3s/server-bootstrap") == "401"
        assert status("-u", "server:wrong", "/v1-k3s/server-bootstrap") == "401"
        bearer = first.kubectl("create", "token", "default").strip()
        assert status("-H", f"Authorization: Bearer {bearer}", "/version") == "200"

    def test_a_server_that_does_not_fit_is_refused(self, net: Net, first: Machine) -> None:
        machine = net.machine("server-b", SECOND)
        joins_first(machine, token="wrong")
        assert "401 Unauthorized" in machine.refused()
        joins_first(machine, token=f"K10{'0' * 64}::server:{TOKEN}")
        assert "token CA hash does not match the Cluster CA certificate hash" in machine.refused()
        joins_first(machine, cluster_cidr="10.99.0.0/16")
        assert "critical configuration value mismatch between servers" in machine.refused()
        assert "critical configuration mismatched: cluster-cidr" in machine.log()
        machine.configure(server=f"https://{LONER[:-2]}99:6443")
        assert "failed to validate token: failed to get CA certs" in machine.refused()
        assert "flag provided but not defined: -nonsense" in machine.refused("server", "--nonsense")
        assert len(first.get("nodes")["items"]) == 1

    def test_two_servers_and_an_agent_join_at_once(self, net: Net, first: Machine) -> None:
        second, third, agent = net.machines[-1], net.machine("server-c", THIRD), net.machine("agent-1", AGENT)
        agent.configure(server=f"https://{VIP}:6443", node_label=["pool=gpu"], node_taint=["gpu=true:NoSchedule"])
        for machine in (second, third):
            joins_first(machine)
            place_vip(machine)
            machine.start()
        agent.start("agent")
        for machine in (second, third, agent):
            machine.up()
        assert ca_of(first) == ca_of(second) == ca_of(third)

        def settled() -> bool:
            nodes = first.get("nodes")["items"]
            voters = [n for n in nodes if condition(n, "EtcdIsVoter")[0] == "True"]
            return len(voters) == 3 and len([n for n in nodes if condition(n, "Ready")[0] == "True"]) == 4

        until(settled, 30)
        node = first.get("node", "agent-1")
        assert node["metadata"]["labels"]["pool"] == "gpu"
        assert {"key": "gpu", "value": "true", "effect": "NoSchedule"} in node["spec"]["taints"]
        assert agent.run("curl", "-sk", "https://127.0.0.1:6444/ping") == "pong"

        def mirrored() -> dict[str, str]:
            pods = first.get("pods", "-n", "kube-system")["items"]
            return {p["metadata"]["name"]: p["status"].get("podIP", "") for p in pods}

        wanted = {f"kube-vip-{m.name}": m.address for m in (first, second, third)}
        until(lambda: wanted.items() <= mirrored().items(), 15)

    def test_labels_of_a_registered_node_stay_as_they_are(self, net: Net, first: Machine) -> None:
        agent = net.machines[-1]
        agent.stop()
        agent.configure(server=f"https://{VIP}:6443", node_label=["pool=other"])
        agent.start("agent")
        agent.up()
        assert first.get("node", "agent-1")["metadata"]["labels"]["pool"] == "gpu"

    def test_a_member_restarts_with_other_critical_flags(self, net: Net, first: Machine) -> None:
        third = net.machines[-2]
        third.stop()
        joins_first(third, cluster_domain="elsewhere.local")
        third.start()
        third.up()
        assert "bootstrap already complete" in third.log()
        third.stop()
        joins_first(third, token="changed")
        assert "bootstrap data already found and encrypted with different token" in third.refused()
        joins_first(third)
        third.start()
        third.up()

    def test_the_address_and_the_controllers_move_when_their_holder_dies(self, net: Net, first: Machine) -> None:
        second = net.machines[-3]
        until(lambda: VIP in first.addresses(), 10)
        lease = ("lease", "k3s-standin-controllers", "-n", "kube-system")
        assert first.get(*lease)["spec"]["holderIdentity"] == "server-a"
        first.kill()
        until(lambda: net.ping(VIP), 40)

        def moved() -> bool:
            found = second.run(str(net.k3s), "kubectl", "get", *lease, "-o", "json", check=False)
            return found.startswith("{") and json.loads(found)["spec"]["holderIdentity"] != "server-a"

        until(moved, 30)
        second.kubectl("create", "deployment", "web", "--image=web", "--replicas=2")
        until(lambda: second.get("deployment", "web")["status"].get("readyReplicas") == 2, 30)

    def test_a_rebuilt_server_needs_its_old_traces_gone(self, net: Net) -> None:
        second = net.machines[-3]
        shutil.rmtree(net.folder / f"server-a-{FIRST}")
        rebuilt = net.machine("server-a", FIRST)
        rebuilt.configure(server=f"https://{SECOND}:6443", **COMMON)
        assert "etcd cluster join failed: duplicate node name found" in rebuilt.refused()
        # only the Node object gone: its member and its password go with it
        second.kubectl("delete", "node", "server-a", "--timeout=30s")
        until(lambda: "server-a.node-password.k3s" not in second.kubectl("get", "secrets", "-n", "kube-system"), 20)
        shutil.rmtree(rebuilt.data)
        rebuilt.start()
        rebuilt.up()
        until(lambda: "server-a" in second.kubectl("get", "nodes"), 20)
        assert ca_of(rebuilt) == ca_of(second)

    def test_a_node_with_another_password_waits(self, net: Net) -> None:
        agent = next(m for m in net.machines if m.name == "agent-1")
        agent.stop()
        (agent.folder / "etc/rancher/node/password").write_text("another\n")
        agent.start("agent")
        until(lambda: "Node password rejected, duplicate hostname" in agent.log(), 20)
        assert agent.k3s and agent.k3s.poll() is None
        agent.kill()

    def test_an_emptied_disk_with_cluster_init_is_a_second_cluster(self, net: Net) -> None:
        third = next(m for m in net.machines if m.name == "server-c")
        before = ca_of(third)
        third.stop()
        shutil.rmtree(third.data)
        third.configure(cluster_init=True, **COMMON)
        third.start()
        third.up()
        assert ca_of(third) != before
        assert [n["metadata"]["name"] for n in until(lambda: third.get("nodes")["items"], 10)] == ["server-c"]

    def test_snapshots_are_taken_by_the_running_server(self, net: Net) -> None:
        third = next(m for m in net.machines if m.name == "server-c")
        third.run(str(net.k3s), "etcd-snapshot", "save", "--name", "before")
        assert re.search(r"before-server-c-\d+", third.run(str(net.k3s), "etcd-snapshot", "ls"))
        (file,) = (third.data / "server/db/snapshots").iterdir()
        content = file.read_bytes()
        assert hashlib.sha256(content[:-32]).digest() == content[-32:]


@pytest.mark.lab
class TestLoner:
    def test_without_flannel_a_node_waits_for_cilium(self, loner: Machine) -> None:
        loner.up()
        assert (loner.data / "server/db/state.db").exists()
        assert not (loner.data / "server/db/etcd/member/wal").exists()
        node = until(lambda: loner.get("nodes")["items"], 10)[0]
        assert condition(node, "Ready") == ("False", "KubeletNotReady")
        pod = {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "cilium", "namespace": "kube-system", "labels": {"k8s-app": "cilium"}},
            "spec": {
                "hostNetwork": True, "tolerations": [{"operator": "Exists"}],
                "containers": [{"name": "agent", "image": "cilium"}],
            },
        }  # fmt: skip
        manifest = loner.data / "server/manifests/cilium.yaml"
        manifest.write_text(json.dumps(pod))
        until(lambda: condition(loner.get("node", "loner"), "Ready") == ("True", "KubeletReady"), 30)
        until(lambda: "taints" not in loner.get("node", "loner")["spec"], 10)

    def test_sqlite_has_no_snapshots(self, loner: Machine) -> None:
        answer = loner.run(str(loner.net.k3s), "etcd-snapshot", "save", check=False)
        assert "etcd datastore disabled" in answer

    def test_sqlite_moves_into_etcd_and_keeps_its_objects(self, loner: Machine) -> None:
        loner.kubectl("create", "configmap", "kept")
        loner.stop()
        loner.configure(cluster_init=True, flannel_backend="none", disable=["coredns", *COMMON["disable"]])
        loner.start()
        loner.up()
        assert "Migrating content from sqlite to etcd" in loner.log()
        assert (loner.data / "server/db/state.db.migrated").exists()
        assert loner.get("configmap", "kept")
        until(lambda: condition(loner.get("node", "loner"), "EtcdIsVoter")[0] == "True", 20)
