"""The first page tells the truth: its picture shows addresses of the documents, and its links lead somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?:/\d{1,2})?(?![\w.])")
LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")
PAGES = ("README.md", "benchmarks/README.md", "docs/operacoes/etcd-restore.md", "docs/operacoes/k3s-rebuild.md")


def documents() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("Pulumi*.yaml")))


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w./:-]+", text))


def test_every_address_of_the_picture_stands_in_a_document() -> None:
    shown = set(ADDRESS.findall((ROOT / "docs/topology.svg").read_text(encoding="utf-8")))
    assert len(shown) > 20
    assert shown <= set(ADDRESS.findall(documents()))


def test_every_host_guest_and_cluster_of_the_picture_stands_in_a_document() -> None:
    picture = (ROOT / "docs/topology.svg").read_text(encoding="utf-8")
    shown = set(re.findall(r"\b(?:pve-[a-z]+-\d+|vm-[a-z]+-\d+|gpu-sp(?:-\d+)?|cluster-[a-z]+)\b", picture))
    assert shown
    assert shown <= {word.rstrip(":") for word in words(documents())}


def targets(page: str) -> Iterator[tuple[str, str]]:
    for target in LINK.findall((ROOT / page).read_text(encoding="utf-8")):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    for path, anchor in targets(page):
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), anchor


def test_the_node_that_the_first_page_adds_is_the_one_of_the_production_guide() -> None:
    def snippet(page: str) -> list[str]:
        lines = [line.strip() for line in (ROOT / page).read_text(encoding="utf-8").splitlines()]
        start = lines.index("vm-sp-03:")
        return lines[start : lines.index("```", start)]

    assert snippet("README.md") == snippet("docs/production.md")
