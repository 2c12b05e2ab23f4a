"""Every invariant with its home: the rule that checks it, the code that holds it, or the layer that will.

Level, statement and source of a registered rule are the registry's; the rest stands in `catalogue.yaml`. The program
needs none of this: it is what `fleet rules` and docs/rules.md tell. Leaves out the violating documents of a rule, which
belong to the tests.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from infra.rules.registry import RULES, Rule

OWN = "DOC"  # family of the rules that come from the format of the documents and not from a decision
OWN_SOURCE = "the format of the documents"


class Layer(StrEnum):
    """What is not built yet."""

    GPU_PLATFORM = "gpu platform"
    KUEUE = "kueue"
    AI_PLATFORM = "ai platform"
    DATACENTER = "datacenter"
    KARMADA = "karmada"
    ARGOCD = "argocd"
    TRAEFIK = "traefik"
    SECRETS = "secrets"
    STORAGE = "storage"
    VELERO = "velero"
    OBSERVABILITY = "observability"
    DAY_TWO = "day two"


class _Row(BaseModel):
    """An entry of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scope: str
    level: Literal["error", "ack", "warn", "allow", "none"] | None = None  # none of these three: the registry's
    statement: str = ""
    source: str = ""
    component: tuple[str, ...] = ()
    artefact: tuple[str, ...] = ()
    behaviour: str = ""
    same_as: str = ""
    pending: tuple[Layer, ...] = ()
    tests: tuple[str, ...] = ()


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    families: dict[str, str]
    rows: dict[str, _Row]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One invariant."""

    id: str
    level: str  # error, ack, warn; allow and none stop nothing
    scope: str  # site, kind of cluster or profile that it speaks of
    statement: str
    source: str  # names of decisions; `upstream` or `engineering guard` where none demands it
    rule: str  # path of the module that checks the documents; empty where none does
    cases: tuple[str, ...]  # what an acknowledgement may name
    component: tuple[str, ...]  # paths of the code that makes it true
    artefact: tuple[str, ...]  # paths of files that hold it
    behaviour: str  # what happens where nothing is stopped
    same_as: str  # id that says the same and is tested there
    pending: tuple[str, ...]  # layers that are not built yet
    tests: tuple[str, ...]  # pytest node ids and paths of violating documents

    @property
    def family(self) -> str:
        return self.id.split("-", 1)[0]

    @property
    def own(self) -> bool:
        return self.family == OWN

    @property
    def homes(self) -> tuple[str, ...]:
        """Where it is kept, most telling first."""
        paths = (*filter(None, [self.rule]), *self.component, *self.artefact)
        told = ("docs/rules.md",) if self.behaviour else ()
        same = (f"same as {self.same_as}",) if self.same_as else ()
        return (*dict.fromkeys(paths), *told, *same, *(f"pending: {layer}" for layer in self.pending))


def families() -> Mapping[str, str]:
    """Titles by family, in the order of the listing."""
    return _file().families


def entries(rules: Mapping[str, Rule] = RULES) -> list[Entry]:
    """All invariants in order. A rule of the documents' own format needs no entry in the file."""
    rows = dict(_file().rows)
    rows |= {id: _Row(scope="all") for id in sorted(rules) if id not in rows and id.startswith(f"{OWN}-")}
    order = list(_file().families)
    found = [_entry(id, row, rules.get(id)) for id, row in rows.items()]
    return sorted(found, key=lambda entry: (order.index(entry.family), entry.id))


def _entry(id: str, row: _Row, rule: Rule | None) -> Entry:
    source = (rule.source if rule else "") or row.source
    return Entry(
        id=id,
        level=str(rule.level) if rule else row.level or "",
        scope=row.scope,
        statement=rule.statement if rule else row.statement,
        source=OWN_SOURCE if id.startswith(f"{OWN}-") else source,
        rule=f"{rule.check.__module__.replace('.', '/')}.py" if rule else "",
        cases=rule.cases if rule else (),
        component=row.component,
        artefact=row.artefact,
        behaviour=row.behaviour,
        same_as=row.same_as,
        pending=tuple(map(str, row.pending)),
        tests=row.tests,
    )


@cache
def _file() -> _File:
    text = resources.files(__package__).joinpath("catalogue.yaml").read_text(encoding="utf-8")
    plain: Any = yaml.safe_load(text)
    return TypeAdapter(_File).validate_python(plain)
