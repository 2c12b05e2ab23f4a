"""The shell of the runbooks, run as printed against stand-in commands: its order, and that each check stops it.

No node and no cluster answers here: `ssh` runs what it is sent in a folder of this machine, and every command that
would reach a cluster, a unit or a host is a stand-in that writes down how it was called. Files below /etc, /var and
/root are those of the folder.
"""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.steps import blocks
from tests.cli.test_migration import NODES, PAGES, page, steps

SHELLS = ("dash", "bash")
REACH = "k3s systemctl journalctl ip iptables-save iptables-restore sleep hostname reboot"
AT_THE_DESK = "pulumi jq helm cilium qm pct curl"
COMMANDS = (*REACH.split(), *AT_THE_DESK.split())
# A stand-in says what the test gave it for the first of its rules whose pattern is in the call.
STAND_IN = r"""#!/bin/sh
called="${0##*/} $*"
printf '%s\n' "$called" >> "$CALLS"
while IFS='	' read -r pattern code said; do
    case $called in
        *"$pattern"*) printf '%b' "$said"; exit "$code" ;;
    esac
done < "$RULES_FILE"
"""
SSH = r"""#!/bin/sh
# ssh LOGIN sudo sh -s: the script comes on standard input. Any other command is one of the stand-ins.
echo "ssh $1" >> "$CALLS"
login=$1
shift
[ "$1" != sudo ] || shift
if [ "$1 $2" = "sh -s" ]; then
    sed -E "s#(^|[ \"'=>])/(etc|var|root|usr/local)/#\1$NODE/\2/#g" > "$NODE/sent"
    # A path that was not moved into the folder would be this machine's.
    if sed "s#$NODE/##g" "$NODE/sent" | grep -E '(^|[^A-Za-z0-9_.-])/(etc|var|root|usr/local)/'; then exit 99; fi
    exec "$SHELL_USED" "$NODE/sent"
fi
exec "$@"
"""


@dataclass
class Desk:
    """Where a block runs, and what the machines that it reaches answer."""

    folder: Path
    shell: str
    answers: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def node(self) -> Path:
        return self.folder / "node"

    def run(self, block: str, **variables: str) -> tuple[int, list[str]]:
        """Exit code, and the calls in order."""
        calls, rules = self.folder / "calls", self.folder / "rules"
        calls.write_text("")
        rules.write_text("".join(f"{pattern}\t{code}\t{said}\n" for pattern, code, said in self.answers))
        done = subprocess.run(
            [self.shell, "-c", block],
            cwd=self.folder,
            env={
                "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
                "CALLS": str(calls),
                "RULES_FILE": str(rules),
                "NODE": str(self.node),
                "SHELL_USED": self.shell,
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        return done.returncode, calls.read_text().splitlines()


@pytest.fixture(params=SHELLS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Desk:
    (tmp_path / "bin").mkdir()
    for name in COMMANDS:
        (tmp_path / "bin" / name).write_text(STAND_IN)
    (tmp_path / "bin/ssh").write_text(SSH)
    for file in (tmp_path / "bin").iterdir():
        file.chmod(0o755)
    made = Desk(folder=tmp_path, shell=f"/bin/{request.param}")
    for path in ("etc/rancher/k3s/config.yaml.d", "etc/systemd/system", "etc/cni/net.d", "root", "var/lib/rancher/k3s"):
        (made.node / path).mkdir(parents=True)
    made.node.joinpath("etc/systemd/system/k3s.service").write_text("ExecStart=/usr/local/bin/k3s server\n")
    made.node.joinpath("etc/rancher/k3s/config.yaml").write_text('flannel-backend: "vxlan"\ntoken: x\n')
    return made


def block(which: str, topic: str, step: int, *parts: str) -> str:
    """The one block of a step that has all these parts; the first of several."""
    found = [one for one in blocks(steps(page(which, topic))[step]) if all(part in one for part in parts)]
    assert found, parts
    return found[0]


VOTES = ("EtcdIsVoter", 0, r"True\nTrue\nTrue\n")
DRAIN = block("franca", "cni-migration", 4, "kubectl drain")
FLAGS = block("franca", "cni-migration", 4, "90-cilium.yaml")
BACK = block("franca", "cni-rollback", 1, NODES["vm-cpps-02"])
SNAPSHOTS = block("franca", "cni-rollback", 6, "qm rollback")
NAMES = {f"SNAPSHOT_{name.upper().replace('-', '_')}": "before" for name in NODES}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(("which", "topic"), PAGES)
def test_every_block_is_shell(which: str, topic: str, shell: str) -> None:
    for one in blocks(page(which, topic)):
        done = subprocess.run([shell, "-n"], input=one, capture_output=True, text=True, timeout=10, check=False)
        assert (done.returncode, done.stderr) == (0, ""), one


@pytest.mark.parametrize(
    "answer",
    [("EtcdIsVoter", 0, r"True\nTrue\nFalse\n"), ("EtcdIsVoter", 1, ""), ("EtcdIsVoter", 0, "")],
    ids=["one lost", "no answer", "nobody"],
)
def test_nothing_is_drained_while_a_vote_is_missing(desk: Desk, answer: tuple[str, int, str]) -> None:
    desk.answers = [answer]
    code, calls = desk.run(DRAIN)
    assert code != 0
    assert not [call for call in calls if "drain" in call]


def test_a_drain_that_fails_is_seen(desk: Desk) -> None:
    desk.answers = [VOTES, ("drain", 1, "")]
    assert desk.run(DRAIN)[0] != 0
    desk.answers = [VOTES]
    code, calls = desk.run(DRAIN)
    assert code == 0
    assert [" ".join(call.split()[:3]) for call in calls] == [
        f"ssh fleet@{NODES['vm-cpps-04']}",
        "k3s kubectl get",
        "k3s kubectl drain",
    ]
    assert "drain vm-cpps-02" in calls[-1]


@pytest.mark.parametrize("drop_ins", [False, True])
def test_a_flag_of_the_unit_stops_the_change_of_flags_before_a_file_is_written(desk: Desk, drop_ins: bool) -> None:
    """Without the folder of drop-ins too, which few nodes have."""
    unit = desk.node / "etc/systemd/system/k3s.service"
    unit.write_text("ExecStart=/usr/local/bin/k3s server --flannel-backend=vxlan\n")
    if drop_ins:
        desk.node.joinpath("etc/systemd/system/k3s.service.d").mkdir()
    before = desk.node.joinpath("etc/rancher/k3s/config.yaml").read_text()
    assert desk.run(FLAGS)[0] == 1
    assert not (desk.node / "root/before-cilium").exists()
    assert not (desk.node / "etc/rancher/k3s/config.yaml.d/90-cilium.yaml").exists()
    assert desk.node.joinpath("etc/rancher/k3s/config.yaml").read_text() == before


def test_flags_change_and_what_was_there_is_kept_once(desk: Desk) -> None:
    assert desk.run(FLAGS)[0] == 0
    assert desk.run(FLAGS)[0] == 0, "a block may be repeated"
    kept, config = desk.node / "root/before-cilium", desk.node / "etc/rancher/k3s"
    assert "flannel-backend" in (kept / "k3s/config.yaml").read_text(), "the first state, not that of the repetition"
    assert "flannel-backend" not in (config / "config.yaml").read_text()
    assert "token: x" in (config / "config.yaml").read_text()
    written = config / "config.yaml.d/90-cilium.yaml"
    assert 'flannel-backend: "none"' in written.read_text()
    assert written.stat().st_mode & 0o777 == 0o600

    assert desk.run(BACK)[0] == 0
    assert not written.exists()
    assert (config / "config.yaml.d/90-flannel.yaml").read_text() == 'flannel-backend: "vxlan"\n'


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("etc/systemd/system/k3s.service", "ExecStart=/usr/local/bin/k3s server --flannel-backend=none\n"),
        ("etc/systemd/system/k3s.service", "ExecStart=/usr/local/bin/k3s server --disable-kube-proxy\n"),
        ("etc/rancher/k3s/config.yaml", "  disable-network-policy: true\n"),
    ],
)
def test_mig_05_step_1_stops_where_a_flag_of_cilium_is_left(desk: Desk, path: str, text: str) -> None:
    desk.node.joinpath(path).write_text(text)
    assert desk.run(BACK)[0] == 1


def test_mig_05_step_1_stops_where_servicelb_stays_off_that_was_on(desk: Desk) -> None:
    back = block("third", "cni-rollback", 1, "172.22.64.21")
    config = desk.node / "etc/rancher/k3s/config.yaml"
    config.write_text('disable:\n  - "servicelb"\n  - "traefik"\n')
    assert desk.run(back)[0] == 0
    assert config.read_text() == 'disable:\n  - "traefik"\n'
    config.write_text("disable: [servicelb, traefik]\n")
    assert desk.run(back)[0] == 1


@pytest.mark.parametrize(
    "answers",
    [
        [("pulumi stack output", 1, ""), ("jq", 4, "")],
        [("helm uninstall", 1, "")],
        [("helm list", 1, "")],
        [("helm list", 0, r"cilium\n")],
    ],
    ids=["no kubeconfig", "not removed", "nobody knows", "still there"],
)
def test_mig_05_step_2_stops_unless_cilium_is_gone(desk: Desk, answers: list[tuple[str, int, str]]) -> None:
    one = block("franca", "cni-rollback", 2, "helm uninstall")
    assert desk.run(one)[0] == 0
    desk.answers = answers
    assert desk.run(one)[0] != 0


def test_mig_05_step_3_does_not_start_what_it_could_not_stop(desk: Desk) -> None:
    one = block("franca", "cni-rollback", 3, "systemctl stop k3s\n")
    code, calls = desk.run(one)
    assert code == 0
    order = [calls.index("systemctl stop k3s"), calls.index("ip link delete cilium_vxlan"),
             calls.index("systemctl start --no-block k3s")]  # fmt: skip
    assert order == sorted(order)
    desk.answers = [("systemctl stop", 1, "")]
    code, calls = desk.run(one)
    assert code != 0
    assert not [call for call in calls if "start" in call or "delete" in call]
    agent = block("third", "cni-rollback", 3, "k3s-agent")
    desk.answers = [("is-active", 3, "failed")]
    assert desk.run(agent)[0] != 0


def test_mig_05_step_3_waits_for_a_server_and_gives_up_in_time(desk: Desk) -> None:
    one = block("franca", "cni-rollback", 3, "is ready and votes")
    desk.answers = [("readyz", 0, "ok"), ("EtcdIsVoter", 0, "True")]
    assert desk.run(one)[0] == 0
    for answers in ([("readyz", 1, "")], [("readyz", 0, "ok"), ("EtcdIsVoter", 0, "False")]):
        desk.answers = answers
        code, calls = desk.run(one)
        assert code != 0
        assert calls.count("sleep 5") == 59
        assert any(call.startswith("journalctl") for call in calls), "the reason is shown"


def test_mig_05_step_4_fails_without_an_answer_only(desk: Desk) -> None:
    one = block("franca", "cni-rollback", 4, "awk")
    desk.answers = [("get pods", 0, r"a b 0/1 CrashLoopBackOff 7 1m\n")]
    assert desk.run(one)[0] == 0
    desk.answers = [("get pods", 1, "")]
    assert desk.run(one)[0] != 0


@pytest.mark.parametrize(
    ("code", "said", "stops"),
    [
        (0, r"a b 1/1 Running 0 1m\na c 0/1 Completed 0 1m\n", False),
        (0, r"a b 1/1 Running 0 1m\na c 0/1 Running 9 (1m ago) 1m\n", True),
        (0, r"a b 0/1 CrashLoopBackOff 7 1m\n", True),
        (1, "", True),
    ],
    ids=["sound", "not ready", "crash-looping", "no answer"],
)
def test_mig_05_step_5_looks_again_and_stops(desk: Desk, code: int, said: str, stops: bool) -> None:
    desk.answers = [("get pods", code, said)]
    assert (desk.run(block("franca", "cni-rollback", 5, "awk"))[0] != 0) is stops


def test_mig_05_step_5_deletes_all_but_the_host_network_and_uncordons_afterwards(desk: Desk) -> None:
    one = block("franca", "cni-rollback", 5, "delete pod")
    desk.answers = [("get pods", 0, r"apps   web   <none>\nkube-system   vip   true\n")]
    code, calls = desk.run(one)
    assert code == 0
    deleted = [call for call in calls if "delete pod" in call]
    assert len(deleted) == 3
    assert all("-n apps delete pod web" in call for call in deleted)
    assert [call.split()[-1] for call in calls[-3:]] == list(NODES)

    for failing in (("get pods", 1, ""), ("delete pod", 1, "")):
        desk.answers = [failing, ("get pods", 0, r"apps   web   <none>\n")]
        code, calls = desk.run(one)
        assert code != 0
        assert not [call for call in calls if "uncordon" in call], failing


def test_mig_06_all_go_down_all_go_back_all_come_up(desk: Desk) -> None:
    code, calls = desk.run(SNAPSHOTS, **NAMES)
    assert code == 0
    assert [call for call in calls if call.startswith("qm")] == [
        *(f"qm stop {vmid}" for vmid in (102, 103, 104)),
        *(f"qm rollback {vmid} before" for vmid in (102, 103, 104)),
        *(f"qm start {vmid}" for vmid in (102, 103, 104)),
    ]


@pytest.mark.parametrize("lacking", sorted(NAMES))
def test_mig_06_nothing_stops_before_every_snapshot_has_a_name(desk: Desk, lacking: str) -> None:
    code, calls = desk.run(SNAPSHOTS, **{name: value for name, value in NAMES.items() if name != lacking})
    assert code != 0
    assert calls == []


@pytest.mark.parametrize("failing", ["qm stop 103", "qm rollback 103"])
def test_mig_06_no_member_starts_while_one_did_not_go_back(desk: Desk, failing: str) -> None:
    desk.answers = [(failing, 255, "")]
    code, calls = desk.run(SNAPSHOTS, **NAMES)
    assert code != 0
    assert not [call for call in calls if "qm start" in call]


def test_the_rebuild_keeps_a_node_that_still_has_its_datastore_from_restarting(desk: Desk) -> None:
    one = block("rebuild", "cni-migration", 3, NODES["vm-cpps-02"])
    uninstall = desk.node / "usr/local/bin/k3s-uninstall.sh"
    uninstall.parent.mkdir(parents=True)
    uninstall.write_text("#!/bin/sh\nexit 0\n")
    uninstall.chmod(0o755)
    database = desk.node / "var/lib/rancher/k3s/server/db"
    database.mkdir(parents=True)
    code, calls = desk.run(one)
    assert code != 0
    assert not [call for call in calls if "reboot" in call]
    uninstall.unlink()
    code, calls = desk.run(one)
    assert code == 0
    assert not database.exists()
    assert calls[-1] == "systemctl reboot"


def test_mig_08_the_proxy_stays_on_where_a_step_before_failed(desk: Desk) -> None:
    backup = block("third", "proxy-cutover", 1, "show configuration")
    desk.answers = [("ssh", 255, "")]
    assert desk.run(backup)[0] != 0, "no backup of the router"
    answers = block("third", "proxy-cutover", 3, "--resolve")
    assert desk.run(answers)[0] == 0
    desk.answers = [("curl", 7, "")]
    assert desk.run(answers)[0] != 0
    assert desk.run(block("third", "proxy-cutover", 4, "RULES"))[0] != 0, "no numbers of rules"
