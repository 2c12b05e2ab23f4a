"""The lab's machines, tried for real: two sites with made-up guests, without Proxmox."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import asyncssh
import pytest

from lab import LabError, control

pytestmark = pytest.mark.lab

NORTH, NORTH_2, SOUTH, GPU = "192.168.0.11", "192.168.0.12", "192.168.60.11", "192.168.60.40"
MIRROR = "192.0.2.10"
CLIENT = """
import asyncio, sys, asyncssh
async def main(key, user, address, command):
    options = {"username": user, "client_keys": [key], "known_hosts": None, "config": None, "agent_path": None}
    async with asyncssh.connect(address, **options, connect_timeout=10) as connection:
        done = await connection.run(command, input=sys.stdin.read(), term_type=None)
        print(done.stdout, end="")
        print(done.stderr, end="", file=sys.stderr)
        return done.exit_status
sys.exit(asyncio.run(main(*sys.argv[1:])))
"""
UNIT = """
[Unit]
Description=fails until told otherwise
StartLimitIntervalSec=0
[Service]
Type=notify
EnvironmentFile=-/etc/absent
Environment="GREETING=a b" OTHER=c
ExecStartPre=-/bin/false
ExecStart=/bin/sh /usr/local/bin/flaky
Restart=always
RestartSec=1h
KillMode=process
[Install]
WantedBy=multi-user.target
"""
PROGRAM = """
echo "greeting: $GREETING"
[ -e /etc/good ] || exit 3
sleep 300 &
exec /opt/fleet-lab/python -c 'import os, socket, time
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
time.sleep(300)'
"""


@dataclass(frozen=True)
class Box:
    """A running lab and the way into its nodes."""

    directory: Path
    key: Path

    def core(self, *argv: str, text: str = "", netns: str | None = None) -> subprocess.CompletedProcess[str]:
        command = control.inside(self.directory, argv, netns=netns)
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)

    def ssh(self, address: str, command: str, *, text: str = "", user: str = "debian") -> tuple[int, str]:
        client = (sys.executable, "-c", CLIENT, str(self.key), user, address, command)
        done = self.core(*client, text=text)
        return done.returncode, done.stdout + done.stderr

    def ok(self, address: str, command: str, *, text: str = "", user: str = "debian") -> str:
        code, output = self.ssh(address, command, text=text, user=user)
        assert code == 0, f"{command}: exit {code}: {output}"
        return output.strip()

    def running(self) -> dict[str, bool]:
        return {node["name"]: node["running"] for node in control.request(self.directory, op="status")["nodes"]}


def describe(directory: Path, public_key: str) -> None:
    def guest(vmid: int, name: str, address: str, gateway: str, **more: object) -> dict[str, object]:
        given = {"vmid": vmid, "name": name, "host": "pve-1", "address": address, "gateway": gateway}
        return {"user": "debian", "ssh_keys": [public_key], **given, **more}

    gpu = {"kind": "lxc", "user": "root", "devices": ["/dev/nvidia0", "/dev/nvidiactl", "/dev/kmsg"]}
    mirror = directory / "mirror"
    (mirror / "v1+k3s1").mkdir(parents=True)
    (mirror / "v1+k3s1/file").write_text("from the mirror\n")
    (directory / "bin").mkdir()
    topology = {
        "sites": {
            "north": {
                "lan": "192.168.0.0/23",
                "router": {"lan_address": "192.168.0.1", "public_address": "203.0.113.1"},
                "hosts": [{"name": "pve-n1", "address": "192.168.0.31"}],
                "guests": [
                    guest(101, "n-1", f"{NORTH}/23", "192.168.0.1"),
                    guest(102, "n-2", f"{NORTH_2}/23", "192.168.0.1"),
                ],
            },
            "south": {
                "lan": "192.168.60.0/24",
                "router": {"lan_address": "192.168.60.1", "public_address": None},
                "guests": [
                    guest(201, "s-1", f"{SOUTH}/24", "192.168.60.1", dns=["192.168.60.1"]),
                    guest(202, "s-gpu", f"{GPU}/24", "192.168.60.1", **gpu),
                ],
            },
        },
        "tunnels": [{"interface": "wg0", "ends": {"north": "10.255.0.1/30", "south": "10.255.0.2/30"}}],
        "mirror": {"address": MIRROR, "directory": str(mirror)},
        "toolchain": str(directory / "bin"),
    }
    (directory / "topology.json").write_text(json.dumps(topology))


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    # Deeper than a socket's path may be.
    directory = tmp_path_factory.mktemp("lab") / ("deep" * 20) / "lab"
    directory.mkdir(parents=True)
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(directory / "key"))
    describe(directory, key.export_public_key().decode())
    control.start(directory)
    yield Box(directory, directory / "key")
    control.stop(directory)
    assert not processes_of(directory), "the lab left processes behind"


def processes_of(directory: Path) -> list[str]:
    """Command lines of processes that name the lab's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(directory) in line:
                found.append(f"{entry.name} {line}")
    return found


def interfaces() -> set[str]:
    return {link.name for link in Path("/sys/class/net").iterdir()}


def eventually(check: Callable[[], bool], within_s: float = 15) -> None:
    deadline = time.monotonic() + within_s
    while not check():
        assert time.monotonic() < deadline, "did not come true in time"
        time.sleep(0.2)


def test_a_command_runs_inside_the_node_with_its_own_name_and_files(box: Box) -> None:
    assert (
        box.ok(NORTH, "hostname; cat /etc/hostname; id -u; echo $HOME; pwd")
        == "n-1\nn-1\n0\n/home/debian\n/home/debian"
    )
    assert box.ok(NORTH, "ls -A /root /home; ls /etc/ssh").count("debian") == 1
    box.ok(NORTH, "echo mine >/etc/mine; echo mine >/usr/local/bin/mine; echo x >/tmp/x")
    assert box.ssh(NORTH_2, "cat /etc/mine")[0] == 1
    assert not Path("/etc/mine").exists()
    assert "Read-only file system" in box.ssh(NORTH, "echo x >/usr/bin/x")[1]
    assert str(box.directory) not in box.ok(NORTH, "ls / ; cat /proc/1/mountinfo | cut -d' ' -f5")


def test_input_output_and_exit_code_pass_through(box: Box) -> None:
    assert box.ssh(NORTH, "cat; echo err >&2; exit 7", text="in\n") == (7, "in\nerr\n")
    assert box.ok(NORTH, "head -c 3000000 /dev/zero | wc -c") == "3000000"


def test_only_the_guests_user_with_the_guests_key_gets_in(box: Box) -> None:
    assert box.ssh(NORTH, "true", user="root")[0] != 0
    assert box.ssh(GPU, "true", user="root")[0] == 0


def test_a_failing_unit_restarts_and_a_good_one_gets_ready(box: Box) -> None:
    box.ok(NORTH, "cat >/etc/systemd/system/flaky.service", text=UNIT)
    box.ok(NORTH, "cat >/usr/local/bin/flaky", text=PROGRAM)
    drop_in = "mkdir -p $d && printf '[Service]\\nRestartSec=200ms\\n' >$d/fast.conf && systemctl daemon-reload"
    box.ok(NORTH, f"d=/etc/systemd/system/flaky.service.d; {drop_in}")
    assert "Created symlink" in box.ok(NORTH, "systemctl enable flaky")
    assert box.ok(NORTH, "systemctl is-enabled flaky") == "enabled"
    code, output = box.ssh(NORTH, "systemctl start flaky")
    assert (code, "the control process exited with error code" in output) == (1, True)

    def restarted() -> bool:
        shown = box.ok(NORTH, "systemctl show -p ActiveState,SubState,NRestarts,Result flaky")
        return "ActiveState=activating" in shown and "NRestarts=0" not in shown

    eventually(restarted)
    assert box.ssh(NORTH, "systemctl is-active flaky") == (3, "activating\n")
    assert "greeting: a b" in box.ok(NORTH, "journalctl -u flaky -n 50 --no-pager -o cat")
    box.ok(NORTH, "touch /etc/good")
    eventually(lambda: box.ssh(NORTH, "systemctl is-active flaky")[0] == 0)
    box.ok(NORTH, "systemctl stop flaky")
    assert box.ok(NORTH, "systemctl show --value -p ActiveState flaky") == "inactive"
    assert box.ok(NORTH, "pgrep -c sleep") == "1", "KillMode=process leaves the others alone"
    box.ok(NORTH, "pkill sleep; systemctl start flaky")
    pid = box.ok(NORTH, "systemctl show --value -p MainPID flaky")
    box.ok(NORTH, f"kill -9 {pid}")
    eventually(
        lambda: (
            box.ok(NORTH, "systemctl show -p NRestarts,ActiveState flaky").split()
            == ["NRestarts=1", "ActiveState=active"]
        )
    )


def test_unknown_units_and_verbs_fail_as_with_systemd(box: Box) -> None:
    assert box.ssh(NORTH, "systemctl start nosuch") == (
        5, "Failed to start nosuch.service: Unit nosuch.service not found.\n")  # fmt: skip
    assert box.ssh(NORTH, "systemctl status nosuch")[0] == 4
    assert box.ssh(NORTH, "systemctl frobnicate x") == (1, "Unknown command verb frobnicate.\n")
    assert box.ok(NORTH, "systemctl show -p LoadState nosuch") == "LoadState=not-found"


def test_nodes_reach_each_other_and_the_mirror_and_nothing_else(box: Box) -> None:
    serve = "cd /etc && nohup /opt/fleet-lab/python -m http.server 8080 >/dev/null 2>&1 </dev/null &"
    box.ok(SOUTH, serve)
    for address in (NORTH, GPU):
        user = "root" if address == GPU else "debian"
        get = f"curl -sS --retry 5 --retry-connrefused --max-time 5 http://{SOUTH}:8080/hostname"
        assert box.ok(address, get, user=user) == "s-1"
    assert box.ok(NORTH, f"curl -sS http://{MIRROR}/v1%2Bk3s1/file") == "from the mirror"
    for outside in ("1.1.1.1", "10.255.255.53"):
        assert box.ssh(NORTH, f"curl -sS --connect-timeout 5 http://{outside}/")[0] == 7
        assert box.core("curl", "-sS", "--connect-timeout", "5", f"http://{outside}/").returncode == 7


def test_a_cut_tunnel_parts_the_sites_until_it_is_healed(box: Box) -> None:
    north = "g-north-n-1"
    probe = ("bash", "-c", f"exec 3<>/dev/tcp/{SOUTH}/22")
    assert box.core(*probe, netns=north).returncode == 0
    control.request(box.directory, op="cut", tunnel="wg0")
    assert "No route to host" in box.core(*probe, netns=north).stderr
    assert box.ok(SOUTH, "true") == "", "core still reaches both sites"
    control.request(box.directory, op="heal", tunnel="wg0")
    assert box.core(*probe, netns=north).returncode == 0
    with pytest.raises(LabError, match="no tunnel wg9; expected one of: wg0"):
        control.request(box.directory, op="cut", tunnel="wg9")


def test_a_killed_node_loses_its_processes_and_keeps_its_disk(box: Box) -> None:
    box.ok(NORTH_2, "echo kept >/var/lib/kept; nohup sleep 4242 >/dev/null 2>&1 </dev/null &")
    key = box.ok(NORTH_2, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    control.request(box.directory, op="kill-node", node="n-2")
    assert box.running() == {"n-1": True, "n-2": False, "s-1": True, "s-gpu": True}
    assert box.core("pgrep", "-f", "sleep 4242").returncode == 1
    assert box.ssh(NORTH_2, "true")[0] != 0
    control.request(box.directory, op="start-node", node="north/n-2")
    assert box.ok(NORTH_2, "cat /var/lib/kept /etc/ssh/ssh_host_ed25519_key.pub") == f"kept\n{key}"


def test_an_enabled_unit_starts_at_boot(box: Box) -> None:
    unit = "[Service]\nExecStart=/bin/sleep 999\n[Install]\nWantedBy=multi-user.target\n"
    box.ok(NORTH_2, "cat >/etc/systemd/system/idle.service && systemctl enable --now idle", text=unit)
    control.request(box.directory, op="kill-node", node="n-2")
    control.request(box.directory, op="start-node", node="n-2")
    assert box.ok(NORTH_2, "systemctl is-active idle") == "active"
    box.ssh(NORTH_2, "touch /run/old; reboot")
    eventually(lambda: box.ssh(NORTH_2, "test ! -e /run/old && systemctl is-active idle")[0] == 0)


def test_a_wiped_node_comes_back_empty_with_a_new_host_key(box: Box) -> None:
    box.ok(NORTH_2, "echo lost >/var/lib/kept")
    key = box.ok(NORTH_2, "cat /etc/ssh/ssh_host_ed25519_key.pub")
    control.request(box.directory, op="wipe-node", node="n-2")
    assert not box.running()["n-2"]
    control.request(box.directory, op="start-node", node="n-2")
    assert box.ssh(NORTH_2, "cat /var/lib/kept")[0] == 1
    assert box.ok(NORTH_2, "hostname; cat /etc/ssh/ssh_host_ed25519_key.pub") != f"n-2\n{key}"


def test_the_container_sees_its_devices_and_a_prepared_host(box: Box) -> None:
    def run(command: str) -> str:
        return box.ok(GPU, command, user="root")

    assert run("for d in /dev/nvidia0 /dev/kmsg; do test -c $d && head -c1 $d && echo yes; done") == "yes\nyes"
    assert run("nvidia-smi --query-gpu=index,name --format=csv,noheader") == "0, Stand-in GPU"
    assert box.ssh(NORTH, "nvidia-smi")[0] == 127
    machine = Path("/proc/sys/vm/overcommit_memory").read_text()
    assert run("cat /proc/sys/vm/overcommit_memory; echo 2 >/proc/sys/vm/overcommit_memory; modprobe nvidia") == "1"
    assert Path("/proc/sys/vm/overcommit_memory").read_text() == machine
    assert run("test -w /proc/sys/kernel && sysctl -n fs.inotify.max_user_instances kernel.hostname") == "8192\ns-gpu"
    assert run("sed -n 's/^CapEff://p' /proc/self/status").endswith("ffffffff")
    assert run("sudo -n sh -c 'echo $USER'; apt-get install -y open-iscsi").startswith("root")


def test_nothing_is_left_after_stop_and_stop_may_be_repeated(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    describe(tmp_path, key.export_public_key().decode())
    before = interfaces()
    control.start(tmp_path)
    assert control.running(tmp_path)
    control.stop(tmp_path)
    control.stop(tmp_path)
    assert not control.running(tmp_path)
    assert not processes_of(tmp_path)
    assert interfaces() == before
    with pytest.raises(LabError, match="no lab runs in"):
        control.request(tmp_path, op="status")


def test_a_lab_that_cannot_be_built_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"topology\.json is missing"):
        control.start(tmp_path)
    assert not processes_of(tmp_path)


def test_a_machine_without_namespaces_is_told_so(tmp_path: Path) -> None:
    refuse = 'echo 0 >/proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    attempt = "import sys; from pathlib import Path; from lab import control; control.start(Path(sys.argv[1]))"
    argv = ["unshare", "-U", "-r", "sh", "-c", refuse, "sh", sys.executable, "-c", attempt, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert "this machine refuses the namespaces that the lab is made of" in last
    assert "sudo sysctl user.max_user_namespaces=10000" in last


def test_the_lab_dies_with_its_first_process(tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    describe(tmp_path, key.export_public_key().decode())
    control.start(tmp_path)
    os.kill(json.loads((tmp_path / "run/daemon.json").read_text())["pid"], signal.SIGKILL)
    eventually(lambda: not processes_of(tmp_path))
    assert not control.running(tmp_path)
    control.start(tmp_path)
    control.stop(tmp_path)


def test_a_terminal_session_has_a_terminal(box: Box) -> None:
    client = CLIENT.replace("term_type=None", "term_type='xterm', term_size=(80, 24)")
    argv = (sys.executable, "-c", client, str(box.key), "debian", NORTH, "test -t 0 && stty size && echo $TERM")
    done = box.core(*argv)
    assert (done.returncode, done.stdout.split()) == (0, ["24", "80", "xterm"]), done.stderr
