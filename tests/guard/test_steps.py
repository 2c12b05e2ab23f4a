"""What the guard stops on where the engine says little: steps made from resources of a real state."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from infra.violation import Violation
from operations.guard import judge, read
from operations.guard.stop import Stop
from tests.guard.samples import Raw, found, plan, raw, resource, step, verdict
from tests.rules.documents import fleet_of, patched, shipped

Change = Callable[[Raw], None]

MEMORY = {"memory.dedicated": {"kind": "update", "inputDiff": True}}


def setting(path: str, value: Any) -> Callable[[Raw], None]:
    def change(inputs: Raw) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            inputs = inputs[parent]
        inputs[last] = value

    return change


def stdin(old: str, new: str) -> Callable[[Raw], None]:
    def change(inputs: Raw) -> None:
        assert old in inputs["stdin"]
        inputs["stdin"] = inputs["stdin"].replace(old, new)

    return change


def to_version(site: str, name: str, version: str) -> Raw:
    return step(site, name, "update", stdin("v1.32.13", version), diffReasons=["stdin"])


def restarted(name: str) -> Raw:
    def change(inputs: Raw) -> None:
        inputs["memory"]["dedicated"] += 1024
        inputs["rebootAfterUpdate"] = True

    return step("franca", name, "update", change, detailedDiff=MEMORY)


def test_fields_are_compared_where_the_engine_names_none() -> None:
    made = verdict(
        "sp", step("sp", "guest-vm-sp-02-vm", "update", setting("disks", [{"interface": "scsi0", "size": 9}]))
    )
    (stop,) = made.stops
    assert (stop.rule, stop.old, stop.new) == ("GRD-02", 100, 9)


def test_a_disk_that_was_grown_by_hand_counts_as_it_is() -> None:
    made = step("sp", "guest-vm-sp-02-vm", "update")
    made["oldState"]["inputs"]["disks"][0]["size"] = 150
    assert ("GRD-02", "guest-vm-sp-02-vm") in found(verdict("sp", made))


def test_a_disk_that_goes_is_a_stop() -> None:
    made = step("sp", "guest-vm-sp-02-vm", "update")
    made["oldState"]["inputs"]["disks"].append({"interface": "scsi1", "size": 500})
    (stop,) = verdict("sp", made).stops
    assert (stop.rule, stop.old, stop.new) == ("GRD-02", 500, None)


def test_another_host_is_a_stop() -> None:
    change = setting("nodeName", "pve-ippri-11")
    (stop,) = verdict("sp", step("sp", "guest-vm-sp-02-vm", "replace", change, replaceReasons=["nodeName"])).stops
    assert (stop.rule, stop.field, stop.new) == ("GRD-03", "nodeName", "pve-ippri-11")
    assert "migrate" in stop.instead


def test_an_unprotected_etcd_member_has_a_key_and_says_what_is_left() -> None:
    made = step("franca", "guest-vm-cpps-04-vm", "replace", replaceReasons=["nodeName"])
    made["oldState"]["protect"] = False
    (stop,) = verdict("franca", made).stops
    assert stop.rule == "GRD-01"
    assert stop.key
    assert "2 of 3 etcd members left, none may fail" in stop.consequence


def test_one_etcd_member_may_restart_and_two_may_not() -> None:
    one = verdict("franca", restarted("guest-vm-cpps-02-vm"))
    assert not one.stops
    assert any("vm-cpps-02 may restart" in note for note in one.notes)
    two = verdict("franca", restarted("guest-vm-cpps-02-vm"), restarted("guest-vm-cpps-03-vm"))
    (stop,) = two.stops
    assert (stop.rule, stop.name, stop.new, stop.key) == ("GRD-06", "cluster-fca", 2, "")
    assert "1 of 3 etcd members left: the quorum is lost" in stop.consequence


def test_memory_without_a_restart_touches_no_member() -> None:
    steps = [
        step("franca", f"guest-{name}-vm", "update", setting("memory.dedicated", 9999), detailedDiff=MEMORY)
        for name in ("vm-cpps-02", "vm-cpps-03", "vm-cpps-04")
    ]
    assert not verdict("franca", *steps).stops


def test_servers_that_roll_are_noted_and_not_stopped() -> None:
    names = ("vm-cpps-02", "vm-cpps-03", "vm-cpps-04")
    steps = [to_version("franca", f"k3s-cluster-fca-server-{name}", "v1.32.14") for name in names]
    made = verdict("franca", *steps)
    assert not made.stops
    assert any(all(name in note for name in names) and "one after another" in note for note in made.notes)


@pytest.mark.parametrize(
    ("version", "way", "has_key"),
    [
        ("v1.34.1", "v1.33 first", False),
        ("v2.0.0", "v1.33 first", False),
        ("v1.31.20", "snapshot", False),
        ("v1.32.12", "put the version back", True),
        ("latest", "v1.32.13+k3s1", True),
    ],
)
def test_versions_go_up_by_one_minor(version: str, way: str, has_key: bool) -> None:
    (stop,) = verdict("sp", to_version("sp", "k3s-gpu-sp-server-gpu-sp-01", version)).stops
    assert stop.rule == "GRD-07"
    assert way in stop.instead
    assert bool(stop.key) == has_key


@pytest.mark.parametrize("version", ["v1.32.14", "v1.33.1"])
def test_a_patch_and_the_next_minor_pass(version: str) -> None:
    server, agent = "k3s-cluster-sp-server-vm-sp-01", "k3s-cluster-sp-agent-vm-sp-02"
    assert not verdict("sp", to_version("sp", server, version), to_version("sp", agent, version)).stops


def test_agents_are_not_newer_than_servers() -> None:
    (stop,) = verdict("sp", to_version("sp", "k3s-cluster-sp-agent-vm-sp-02", "v1.33.1")).stops
    assert (stop.rule, stop.new) == ("GRD-07", "v1.33.1+k3s1")
    assert "vm-sp-01" in stop.instead


@pytest.mark.parametrize(
    ("line", "other", "key", "rule"),
    [
        ('node-ip: "192.168.10.21"', 'node-ip: "192.168.10.99"', "node-ip", "GRD-04"),
        ('service-cidr: "10.142.0.0/16"', 'service-cidr: "10.143.0.0/16"', "service-cidr", "GRD-04"),
        ('flannel-backend: "none"', 'flannel-backend: "vxlan"', "flannel-backend", "GRD-04"),
        ('node-name: "vm-sp-01"', 'node-name: "vm-sp-00"', "node-name", "GRD-03"),
    ],
)
def test_what_is_fixed_for_life_is_a_stop(line: str, other: str, key: str, rule: str) -> None:
    made = verdict(
        "sp", step("sp", "k3s-cluster-sp-server-vm-sp-01", "update", stdin(line, other), diffReasons=["stdin"])
    )
    assert (rule, key) in {(stop.rule, stop.field) for stop in made.stops}


CNI_LINES = "disable-kube-proxy: true\ndisable-network-policy: true\n", 'flannel-backend: "none"\n'
CNI_KEYS = ["disable-kube-proxy", "disable-network-policy", "flannel-backend"]
MOVED = {"vm-cpps-02": "none", "vm-cpps-03": "none"}
JOINED = "k3s-cluster-fca-server-vm-cpps-04"


def cni(*, to: str, current: dict[str, str | None], from_flannel: bool, more: Change | None = None) -> list[Stop]:
    """GRD-04 for the server of the program when its CNI changes, with what the document says of the others."""
    old = "vxlan" if to == "none" else "none"

    def flags(backend: str) -> Change:
        def change(inputs: Raw) -> None:
            for lines in CNI_LINES:
                assert lines in inputs["stdin"]
                inputs["stdin"] = inputs["stdin"].replace(lines, lines if backend == "none" else "")
            if backend not in ("none", "vxlan"):
                inputs["stdin"] = inputs["stdin"].replace("node-ip:", f'flannel-backend: "{backend}"\nnode-ip:', 1)

        return change

    state = raw("state-franca")
    made = step("franca", JOINED, "update", flags(to), diffReasons=["stdin"])
    if more:
        more(made["newState"]["inputs"])
    for one in (made["oldState"], *(one for one in state["deployment"]["resources"] if one["urn"] == made["urn"])):
        flags(old)(one["inputs"])
    documents = patched(
        shipped(),
        {f"franca.guests.{name}.current.flannel_backend": said for name, said in current.items()}
        | {"franca.migration.from_flannel": from_flannel},
    )
    documented, faults = fleet_of(documents)
    assert documented is not None, faults
    return [one for one in judge(read({"steps": [made]}, state), documented, "franca").stops if one.rule == "GRD-04"]


def test_mig_03_the_cni_moves_once_the_document_says_that_every_server_has_it() -> None:
    stops = cni(to="none", current=dict(MOVED), from_flannel=False)
    assert sorted(one.field for one in stops) == CNI_KEYS
    assert all(one.acceptable and "fleet runbook franca cni-migration" in one.instead for one in stops)
    assert len({one.key for one in stops}) == 3


def test_mig_05_the_cni_goes_back_once_the_document_says_that_every_server_has_gone_back() -> None:
    stops = cni(to="vxlan", current=dict.fromkeys(MOVED, "vxlan"), from_flannel=True)
    assert sorted(one.field for one in stops) == CNI_KEYS
    assert all(one.acceptable and "fleet runbook franca cni-rollback" in one.instead for one in stops)


@pytest.mark.parametrize(
    ("to", "current", "from_flannel"),
    [
        ("none", MOVED | {"vm-cpps-03": "vxlan"}, False),
        ("none", MOVED | {"vm-cpps-03": None}, False),
        ("none", dict.fromkeys(MOVED, "vxlan"), False),
        ("none", MOVED, True),
        ("vxlan", MOVED, False),
        ("vxlan", dict.fromkeys(MOVED, None), True),
        ("vxlan", dict.fromkeys(MOVED, "vxlan"), False),
        ("host-gw", dict.fromkeys(MOVED, "vxlan"), True),
    ],
    ids=["one behind", "one unsaid", "none moved", "move not recorded", "others moved", "nothing said",
         "way back not recorded", "another backend"],
)  # fmt: skip
def test_nobody_can_accept_a_cni_that_the_document_does_not_say_of_every_server(
    to: str, current: dict[str, str | None], from_flannel: bool
) -> None:
    stops = cni(to=to, current=current, from_flannel=from_flannel)
    assert sorted(one.field for one in stops) == CNI_KEYS
    assert [one.key for one in stops] == ["", "", ""]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("disable-kube-proxy: true\n", ""),
        ("disable-network-policy: true\n", ""),
        ('flannel-backend: "none"', 'flannel-backend: "host-gw"'),
    ],
)
def test_nobody_can_accept_half_a_move(old: str, new: str) -> None:
    """The three keys belong together: a server with Cilium and kube-proxy is none that the others are like."""
    stops = cni(to="none", current=dict(MOVED), from_flannel=False, more=stdin(old, new))
    assert len(stops) >= 2
    assert not [one.key for one in stops if one.key]


def test_a_range_that_changes_with_the_cni_has_no_key() -> None:
    other = stdin('service-cidr: "10.141.0.0/16"', 'service-cidr: "10.143.0.0/16"')
    stops = cni(to="none", current=dict(MOVED), from_flannel=False, more=other)
    assert [one.field for one in stops if not one.key] == ["service-cidr"]


@pytest.mark.parametrize(
    ("server", "old", "new"),
    [
        ("cluster-sp-server-vm-sp-01", 'flannel-backend: "none"', 'flannel-backend: "vxlan"'),
        ("gpu-sp-server-gpu-sp-01", "node-ip:", 'flannel-backend: "host-gw"\nnode-ip:'),
    ],
)
def test_the_cni_of_a_cluster_that_the_program_keeps_alone_stays(server: str, old: str, new: str) -> None:
    made = verdict("sp", step("sp", f"k3s-{server}", "update", stdin(old, new), diffReasons=["stdin"]))
    (stop,) = [one for one in made.stops if one.field == "flannel-backend"]
    assert not stop.acceptable


def test_one_server_that_leaves_has_a_key() -> None:
    (stop,) = verdict("franca", step("franca", "k3s-cluster-fca-server-vm-cpps-04", "delete")).stops
    assert (stop.rule, stop.old) == ("GRD-05", "vm-cpps-04")
    assert stop.key
    assert "kubectl delete node vm-cpps-04" in stop.instead


def test_settings_that_nobody_can_read_are_a_stop() -> None:
    made = step("sp", "k3s-cluster-sp-server-vm-sp-01", "update", setting("stdin", "[secret]"), diffReasons=["stdin"])
    assert ("GRD-13", "k3s-cluster-sp-server-vm-sp-01") in found(verdict("sp", made))


def test_a_token_of_a_living_cluster_stays() -> None:
    assert found(verdict("sp", step("sp", "k3s-cluster-sp-token", "replace"))) == {("GRD-12", "k3s-cluster-sp-token")}


def test_a_provider_that_is_replaced_is_one_stop_with_all_that_hangs_on_it() -> None:
    chart = step("sp", "cilium-cluster-sp-chart", "replace", replaceReasons=["provider"])
    provider = step("sp", "k3s-cluster-sp-api", "replace", setting("clusterIdentifier", "another"),
                    replaceReasons=["clusterIdentifier"])  # fmt: skip
    (stop,) = verdict("sp", chart, provider).stops
    assert (stop.rule, stop.field, stop.new) == ("GRD-08", "clusterIdentifier", "another")
    assert stop.key


def test_cilium_that_leaves_is_a_stop() -> None:
    assert found(verdict("sp", step("sp", "cilium-cluster-sp-chart", "delete"))) == {
        ("GRD-09", "cilium-cluster-sp-chart")
    }


def test_another_release_beside_cilium_that_leaves_is_not_its_end() -> None:
    """MetalLB's, when LB-IPAM takes over the addresses."""
    gone = step("sp", "cilium-cluster-sp-chart", "delete")
    gone["oldState"]["inputs"]["name"] = "metallb"
    assert {rule for rule, _ in found(verdict("sp", gone))} == {"GRD-13"}
    gone["oldState"]["inputs"].pop("name")
    assert {rule for rule, _ in found(verdict("sp", gone))} == {"GRD-09"}, "one that nobody can tell may be Cilium"


def test_an_import_that_differs_names_its_fields() -> None:
    same = step("sp", "guest-gpu-sp-01-ct", "import", detailedDiff={})
    assert not verdict("sp", same).stops
    differs = step("sp", "guest-gpu-sp-01-ct", "import", setting("memory.dedicated", 4), detailedDiff=MEMORY)
    (stop,) = verdict("sp", differs).stops
    assert (stop.rule, stop.field, stop.old, stop.new) == ("GRD-11", "memory.dedicated", 65536, 4)
    assert "fleet adopt sp" in stop.instead


def renamed(made: Raw, old: str, new: str) -> Raw:
    """A step with another type in its URNs."""
    made = copy.deepcopy(made)
    made["urn"] = made["urn"].replace(old, new)
    for side in ("oldState", "newState"):
        if side in made:
            made[side]["urn"] = made["urn"]
    return made


@pytest.mark.parametrize("op", ["delete", "replace"])
def test_the_end_of_an_unknown_kind_is_a_stop(op: str) -> None:
    made = renamed(step("sp", "k3s-cluster-sp-token", op), "random:index/randomPassword:RandomPassword", "x:y:Z")
    (stop,) = verdict("sp", made).stops
    assert stop.rule == "GRD-13"
    assert "x:y:Z" in stop.consequence


def test_an_unknown_operation_is_a_stop() -> None:
    assert found(verdict("sp", step("sp", "k3s-cluster-sp-token", "teleport"))) == {("GRD-13", "k3s-cluster-sp-token")}


def test_a_hidden_change_without_details_is_a_stop() -> None:
    made = step("sp", "k3s-cluster-sp-token-vm-sp-01", "update", diffReasons=["stdin"])
    assert found(verdict("sp", made)) == {("GRD-13", "k3s-cluster-sp-token-vm-sp-01")}


def test_a_command_that_acts_when_deleted_is_a_stop() -> None:
    made = step("sp", "k3s-cluster-sp-labels-vm-sp-02", "delete")
    assert not verdict("sp", made).stops
    made["oldState"]["inputs"]["delete"] = "rm -rf /"
    assert found(verdict("sp", made)) == {("GRD-13", "k3s-cluster-sp-labels-vm-sp-02")}


def test_a_guest_whose_creation_was_cut_off_is_looked_at_first() -> None:
    made = copy.deepcopy(resource("sp", "guest-vm-sp-02-vm"))
    made["urn"] += "-new"
    (stop,) = verdict("sp", pending=[{"type": "creating", "resource": made}]).stops
    assert (stop.rule, stop.new) == ("GRD-14", 202)
    assert stop.key
    command = copy.deepcopy(resource("sp", "k3s-cluster-sp-labels-vm-sp-02"))
    command["urn"] += "-new"
    assert not verdict("sp", pending=[{"type": "creating", "resource": command}]).stops


def test_halves_of_a_replacement_are_one_step() -> None:
    halves = [
        step("sp", "guest-vm-sp-02-vm", "create-replacement", setting("vmId", 299), replaceReasons=["vmId"]),
        step("sp", "guest-vm-sp-02-vm", "delete-replaced"),
    ]
    assert [one.op for one in plan("sp", *halves).steps] == ["replace"]


def test_a_guest_with_state_wants_a_backup_before_it_changes() -> None:
    asked: list[tuple[set[str], set[str]]] = []

    def missing(touched: set[str], destroyed: set[str]) -> list[Violation]:
        asked.append((touched, destroyed))
        path = "evidence.sp.guest/vm-sp-01"
        return [Violation(id="BKP-01", path=path, found="no recorded backup", expected="one", remedy="fleet backup sp")]

    memory = step("sp", "guest-vm-sp-01-vm", "update", setting("memory.dedicated", 9999), detailedDiff=MEMORY)
    tags = step("sp", "guest-gpu-sp-01-ct", "update", setting("tags", ["x"]), diffReasons=["tags"])
    gone = step("sp", "guest-vm-sp-02-vm", "delete")
    made = verdict("sp", memory, tags, gone, missing_backups=missing)
    assert asked == [({"guest/vm-sp-01", "guest/vm-sp-02"}, {"guest/vm-sp-02"})]
    (stop,) = made.stops
    assert (stop.rule, stop.name, stop.old) == ("BKP-01", "guest-vm-sp-01-vm", "no recorded backup")
    assert stop.key
