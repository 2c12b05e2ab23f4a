"""What the engine plans and what the state holds, as plain values: steps, their fields before and after.

Reads `pulumi preview --json` and `pulumi stack export`. Leaves out any opinion. A secret is `[secret]` and a value that
only the run will know is `[unknown]`, whatever the engine writes for them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

SECRET = "[secret]"
UNKNOWN = "[unknown]"
_ENGINE_UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_SIGNATURE = "4dabf18193072939515e22adb298388d"
_STEP = re.compile(r'\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]|\.?([^.\[]+)')
SAME, CREATE, UPDATE, DELETE, REPLACE, IMPORT = "same", "create", "update", "delete", "replace", "import"
# Names of one replacement's halves, in the order in which the engine may tell of them.
_HALVES = {"create-replacement": REPLACE, "delete-replaced": REPLACE, "import-replacement": REPLACE}
_FORGOTTEN = "remove-pending-replace"  # after `delete-replaced`, of what is not to come back
KNOWN_OPS = frozenset({SAME, CREATE, UPDATE, DELETE, REPLACE, IMPORT, "read", "refresh"})


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource of the state, or one side of a step."""

    urn: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""  # as the provider knows it
    parent: str = ""
    provider: str = ""  # URN
    protect: bool = False
    imported: bool = False
    retained: bool = False  # where the engine deletes it, Proxmox keeps it

    @property
    def name(self) -> str:
        return name_of(self.urn)

    @property
    def type(self) -> str:
        return types_of(self.urn)[-1]


def name_of(urn: str) -> str:
    return urn.rsplit("::", 1)[-1]


def types_of(urn: str) -> tuple[str, ...]:
    """Types of a resource's ancestors and its own, outermost first."""
    parts = urn.split("::")
    return tuple(parts[2].split("$")) if len(parts) > 2 else ("",)


@dataclass(frozen=True, kw_only=True)
class Change:
    """One field of a step; None where it was or will be absent."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class Step:
    """One planned operation."""

    op: str
    urn: str
    old: Resource | None
    new: Resource | None
    detailed: Mapping[str, bool] | None  # path to: does it compare inputs? None where the provider says nothing
    reasons: tuple[str, ...]  # properties that differ
    replace_reasons: tuple[str, ...]
    imports_again: bool = False  # a replacement by what is there under another id

    @property
    def name(self) -> str:
        return name_of(self.urn)

    @property
    def type(self) -> str:
        return types_of(self.urn)[-1]

    @property
    def goes(self) -> bool:
        """Whether what exists ends: it is deleted, or replaced."""
        return self.op in (DELETE, REPLACE)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The fields that differ: those the engine names, else those in which old and new inputs differ."""
        if self.old is None or self.new is None:
            return ()
        if self.detailed:
            return tuple(
                Change(path=path, old=self._before(path, inputs), new=at(self.new.inputs, path))
                for path, inputs in self.detailed.items()
            )
        wanted = {*self.reasons, *self.replace_reasons} - {"provider"}
        return tuple(
            change
            for change in differences(self.old.inputs, self.new.inputs)
            if not wanted or next(steps(change.path), None) in wanted
        )

    def _before(self, path: str, inputs: bool) -> Any:
        assert self.old is not None
        first, second = (self.old.inputs, self.old.outputs) if inputs else (self.old.outputs, self.old.inputs)
        value = at(first, path)
        return at(second, path) if value is None else value


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All steps of a preview that change something, and the resources of the state."""

    steps: tuple[Step, ...]
    state: tuple[Resource, ...]
    pending: tuple[tuple[str, Resource], ...] = ()  # operations that an aborted update left: kind and resource

    def step(self, urn: str) -> Step | None:
        return next((step for step in self.steps if step.urn == urn), None)

    def after(self) -> Iterator[Resource]:
        """The resources as they will be."""
        by_urn = {step.urn: step for step in self.steps}
        for resource in self.state:
            step = by_urn.pop(resource.urn, None)
            if step is None:
                yield resource
            elif step.op != DELETE:
                yield step.new or resource
        for step in by_urn.values():
            if step.new is not None and step.op != DELETE:
                yield step.new


def read(previewed: Mapping[str, Any], exported: Mapping[str, Any]) -> Plan:
    """The plan of a preview over a state."""
    deployment = exported.get("deployment") or {}
    pending = tuple(
        (str(entry.get("type")), _resource(entry["resource"])) for entry in deployment.get("pending_operations") or ()
    )
    state = tuple(_resource(raw) for raw in deployment.get("resources") or () if not raw.get("delete"))
    there = {resource.urn: resource for resource in state}
    return Plan(steps=_merged(_step(raw, there) for raw in previewed.get("steps") or ()), state=state, pending=pending)


def _merged(told: Iterable[Step]) -> tuple[Step, ...]:
    """One step for each resource; two where a replacement that an earlier run began still has its old half to end."""
    found: dict[tuple[str, bool], Step] = {}
    for step in told:
        known = found.get((step.urn, False))
        ends = step.op == REPLACE and step.new is None
        if step.op == SAME:
            continue
        if known is None:
            found[step.urn, False] = step
        elif known.op == REPLACE and step.op == REPLACE:
            told_better = step if known.new is None else known  # the half that says what comes
            again = known.imports_again or step.imports_again
            found[step.urn, False] = replace(told_better, imports_again=again)
        elif ends:
            found[step.urn, True] = step
        elif known.op == REPLACE and known.new is None and step.op != _FORGOTTEN:
            found[step.urn, False], found[step.urn, True] = step, known
    return tuple(found.values())


def _step(raw: Mapping[str, Any], there: Mapping[str, Resource]) -> Step:
    detailed = raw.get("detailedDiff")
    told, urn = str(raw.get("op")), str(raw.get("urn"))
    op = _HALVES.get(told, told)
    known = there.get(urn) if op in (UPDATE, DELETE, REPLACE) else None
    old = _resource(raw["oldState"]) if raw.get("oldState") else known
    if old and known:
        old = replace(old, provider=old.provider or known.provider)
    return Step(
        op=op,
        urn=urn,
        old=old,
        new=_resource(raw["newState"]) if raw.get("newState") else None,
        detailed=None
        if detailed is None
        else {path: bool((one or {}).get("inputDiff")) for path, one in detailed.items()},
        reasons=tuple(raw.get("diffReasons") or ()),
        replace_reasons=tuple(raw.get("replaceReasons") or ()),
        imports_again=told == "import-replacement",
    )


def _resource(raw: Mapping[str, Any]) -> Resource:
    return Resource(
        urn=str(raw.get("urn")),
        inputs=_plain(raw.get("inputs") or {}),
        outputs=_plain(raw.get("outputs") or {}),
        id=str(raw.get("id") or raw.get("importID") or ""),
        parent=str(raw.get("parent") or ""),
        provider=str(raw.get("provider") or "").rpartition("::")[0],
        protect=bool(raw.get("protect")),
        imported=bool(raw.get("importID")),
        retained=bool(raw.get("retainOnDelete")),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return SECRET if _SIGNATURE in value else {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return UNKNOWN if value == _ENGINE_UNKNOWN else value


def steps(path: str) -> Iterator[str | int]:
    """The keys and indices of a path as the engine writes it."""
    for quoted, index, key in _STEP.findall(path):
        yield int(index) if index else quoted or key


def at(value: Any, path: str) -> Any:
    """The value below a path; None where there is none, and the mark of a secret for all that lies in one."""
    for step in steps(path):
        if value in (SECRET, UNKNOWN):
            return value
        if isinstance(step, int):
            value = value[step] if isinstance(value, list) and step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def hides(value: Any) -> bool:
    """Whether there is something in a value that cannot be read."""
    if isinstance(value, Mapping):
        return any(hides(one) for one in value.values())
    return any(hides(one) for one in value) if isinstance(value, list) else value in (SECRET, UNKNOWN)


def differences(old: Any, new: Any, path: str = "") -> Iterator[Change]:
    """Leaves in which two values differ. Two secrets count as equal: nothing here can tell."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            if not key.startswith("__"):
                yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            one = old[index] if index < len(old) else None
            yield from differences(one, new[index] if index < len(new) else None, f"{path}[{index}]")
    elif old != new:
        yield Change(path=path, old=old, new=new)
