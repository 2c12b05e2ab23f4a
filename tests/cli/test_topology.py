"""The picture of the fleet: it says what the documents say, nothing overlaps, and the committed one is current."""

import re
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cli import drawing
from cli.sheet import Box, Sheet, Text, svg, width
from infra.config import Fleet
from infra.config.loading import load
from tests.cli import project
from tests.cli.project import ROOT, folder_with
from tests.rules.documents import fleet_of, shipped
from tests.rules.test_documents import many_sites
from tests.sites import changed, three_sites

PICTURE = ROOT / drawing.FILE
NAMESPACE = "{http://www.w3.org/2000/svg}"


def shipped_fleet() -> Fleet:
    fleet, faults = load(ROOT)
    assert fleet is not None, faults
    return fleet


def one_site() -> Fleet:
    whole = shipped_fleet()
    return Fleet(whole.common, {"sp": whole.sites["sp"]})


def long_names() -> Fleet:
    """Names of every length that a document may have."""
    text = repr(shipped())
    for name in ("vm-cpps-02", "pve-labri-32", "gpu-sp-01", "vm-sp-01"):
        text = text.replace(f"'{name}'", f"'{name}-{'m' * 40}'")
    fleet, faults = fleet_of(eval(text, {"__builtins__": {}}))  # a literal that was printed just now
    assert fleet is not None, faults
    return fleet


def five_sites() -> Fleet:
    fleet, faults = fleet_of(many_sites(5))
    assert fleet is not None, faults
    return fleet


FLEETS: dict[int, Callable[[], Fleet]] = {1: one_site, 2: shipped_fleet, 3: three_sites, 5: five_sites, 40: long_names}


@pytest.fixture(params=FLEETS)
def sheet(request: pytest.FixtureRequest) -> Sheet:
    return drawing.layout(FLEETS[request.param]())


def overlapping(boxes: list[Box]) -> Iterator[tuple[Box, Box]]:
    """Pairs that share ground without one lying in the other."""
    for one, other in combinations(boxes, 2):
        if one.meets(other) and not one.holds(other) and not other.holds(one):
            yield one, other


def test_boxes_lie_beside_or_inside_each_other(sheet: Sheet) -> None:
    assert not list(overlapping(sheet.boxes))
    same = [(one, other) for one, other in combinations(sheet.boxes, 2) if one.holds(other) and other.holds(one)]
    assert not same


def test_texts_do_not_overlap(sheet: Sheet) -> None:
    meeting = [(one, other) for one, other in combinations(sheet.texts, 2) if one.box.meets(other.box)]
    assert not meeting


def test_every_text_fits_the_box_that_it_begins_in(sheet: Sheet) -> None:
    for text in sheet.texts:
        place = text.box
        around = [box for box in sheet.boxes if _begins_in(place, box)]
        assert all(box.holds(place) for box in around), text
        assert not [box for box in sheet.boxes if box.meets(place) and not box.holds(place) and box not in around], text


def _begins_in(place: Box, box: Box) -> bool:
    middle = place.y + place.height // 2
    return box.x <= place.x < box.x + box.width and box.y <= middle < box.y + box.height


def test_everything_lies_on_the_sheet(sheet: Sheet) -> None:
    whole = Box(0, 0, sheet.width, sheet.height, "")
    assert all(whole.holds(box) for box in [*sheet.boxes, *(text.box for text in sheet.texts)])
    points = [point for line in sheet.lines for point in line.points]
    assert all(0 <= x <= sheet.width and 0 <= y <= sheet.height for x, y in points)


def test_the_search_for_overlaps_finds_one() -> None:
    assert list(overlapping([Box(0, 0, 10, 10, ""), Box(5, 5, 10, 10, "")]))
    assert Text(0, 20, "one").box.meets(Text(5, 22, "two").box)


def test_every_tunnel_ends_at_two_routers_and_the_mesh_at_its_members() -> None:
    for make in FLEETS.values():
        fleet = make()
        found = drawing.layout(fleet)
        routers = [box for box in found.boxes if box.kind == "router" and box.width > 30]
        assert len(routers) == len(fleet.sites)
        drawn = [line for line in found.lines if line.kind == "tunnel"]
        assert len(drawn) == len([one for one in fleet.common.tunnels if set(one.ends) <= set(fleet.sites)])
        for line in drawn:
            ends = [[box for box in routers if box.y == y and box.x <= x <= box.x + box.width] for x, y in
                    (line.points[0], line.points[-1])]  # fmt: skip
            assert [len(end) for end in ends] == [1, 1]
            assert ends[0] != ends[1]
        members = [cluster for _, _, cluster in fleet.clusters() if cluster.in_mesh]
        assert len([line for line in found.lines if line.kind == "mesh"]) == len(members) + (len(members) > 1)


def test_two_tunnels_of_a_site_end_at_different_places() -> None:
    ends = [point for line in drawing.layout(five_sites()).lines if line.kind == "tunnel" for point in
            (line.points[0], line.points[-1])]  # fmt: skip
    assert len(ends) == len(set(ends)) == 20


def test_it_names_everything_of_the_documents() -> None:
    fleet = shipped_fleet()
    said = " ".join(text.text for text in drawing.layout(fleet).texts)
    for site_id, site in fleet.sites.items():
        wanted = [site_id, site.network.lan_cidr, site.vyos.lan_address, f"AS {site.bgp.vyos_asn}", site.lb.pool.start]
        wanted += [vip for _, vip in site.lb.vips if vip]
        for host in site.proxmox.hosts.values():
            wanted += [host.name, f"{host.address}, tier {host.hardware_tier}"]
        for guest in site.guests.values():
            wanted += [guest.name, f"{guest.address}, {'LXC' if guest.kind == 'lxc' else 'VM'} {guest.vmid}"]
        for cluster in site.clusters.values():
            wanted += [cluster.name, cluster.pod_cidr, cluster.service_cidr]
        assert not [one for one in wanted if str(one) not in said], site_id
    (tunnel,) = fleet.common.tunnels
    assert f"WireGuard wg0 {tunnel.cidr}: franca 10.255.0.1 to sp 10.255.0.2; eBGP AS 65001 to AS 65002" in said
    assert "main, Cilium, id 1, in the mesh" in said
    assert "GPU, Flannel, outside the mesh" in said
    assert "until its migration: Flannel (vxlan)" in said
    assert "1 x A5500 24 GiB" in said


def test_a_change_of_a_document_shows() -> None:
    def edit(documents: dict[str, dict[str, object]]) -> None:
        documents["sp"]["bgp"]["vyos_asn"] = 65999  # type: ignore[index]

    said = " ".join(text.text for text in drawing.layout(changed(edit)).texts)
    assert "eBGP with every node, AS 65002" in said
    assert "AS 65001 to AS 65999" in said


def test_it_is_the_same_each_time_and_well_formed() -> None:
    one, two = drawing.of(shipped_fleet()), drawing.of(shipped_fleet())
    assert one == two
    root = ElementTree.fromstring(one)
    assert root.tag == f"{NAMESPACE}svg"
    assert root.find(f"{NAMESPACE}title") is not None
    assert "prefers-color-scheme: dark" in one
    assert not re.search(r"(href|src|url\()", one), "nothing is fetched"


def test_signs_that_mean_something_to_xml_are_text() -> None:
    sheet = Sheet(title="<&>", description="", width=99, height=99)
    sheet.text(1, 20, "a < b & c")
    texts = [one.text for one in ElementTree.fromstring(svg(sheet)).iter(f"{NAMESPACE}text")]
    assert texts == ["a < b & c"]


def test_wide_letters_count_for_more() -> None:
    assert width("mmmm") > width("aaaa") > width("iiii")
    assert width("name", bold=True) > width("name")


def test_the_committed_picture_is_that_of_the_documents() -> None:
    assert PICTURE.read_text(encoding="utf-8") == drawing.of(shipped_fleet()), "run: ./fleet topology --write"
    assert project.fleet("topology").out == PICTURE.read_text(encoding="utf-8")


def test_a_site_without_clusters_is_drawn() -> None:
    documents = shipped()
    documents["sp"]["clusters"] = {}
    fleet, faults = fleet_of(documents)
    assert fleet is not None, faults
    ElementTree.fromstring(drawing.of(fleet))


def test_the_picture_is_written_beside_the_documents_it_shows(tmp_path: Path) -> None:
    before = PICTURE.read_text(encoding="utf-8")
    documents = shipped()
    documents["sp"]["network"]["mtu"] = 9000
    folder_with(tmp_path, documents)
    assert project.fleet("topology", "--write", "--folder", str(tmp_path)).code == 0
    assert "MTU 9000" in (tmp_path / drawing.FILE).read_text(encoding="utf-8")
    assert PICTURE.read_text(encoding="utf-8") == before
