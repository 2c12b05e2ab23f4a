"""Documents to models: reads Pulumi.yaml and every Pulumi.<site>.yaml of a folder into one `Fleet`.

Faults of shape come back as violations, all of them together: DOC-01 unreadable file, DOC-02 unknown key, DOC-03 value
of the wrong type or range, GEN-07 missing value. Encrypted values of the stack files are never read.
"""

import difflib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from infra.config.base import ONE_LINE, Model
from infra.config.fleet import Common, Fleet, Site
from infra.config.reader import read
from infra.violation import Violation, shown

PROJECT_FILE = "Pulumi.yaml"
MOST_FAULTS = 300  # of shape that are named for one document; nobody reads more at once
SITE_KEY = "fleet:site"
COMMON_KEY = "fleet:common"
M = TypeVar("M", bound=Model)
_STACK_FILE = re.compile(r"^Pulumi\.([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)\.yaml$")
_LIKE_ONE = re.compile(r"^Pulumi\.(.*\.)?ya?ml$", re.IGNORECASE)
HIDDEN = "//[hidden]@"
_USER_INFO = re.compile(r"//[^/@\s]*@")
_TAGS = {"vm", "lxc"}  # discriminator values that pydantic puts into the location of an error


def load(folder: Path) -> tuple[Fleet | None, list[Violation]]:
    """The fleet of a folder, or every fault of shape of every document in it."""
    common, violations = _document(folder / PROJECT_FILE, "common", _common_value)
    sites: dict[str, dict[str, Any]] = {}
    for site_id, path in stack_files(folder).items():
        value, found = _document(path, site_id, _site_value)
        sites[site_id] = value
        violations += found
    if not sites:
        violations.append(
            Violation(
                id="GEN-01",
                path="Pulumi.*.yaml",
                found=f"no stack file beside {PROJECT_FILE}",
                expected="one Pulumi.<site>.yaml for each site",
                remedy="copy the stack file of a site and edit it",
            )
        )
    if "common" in sites:
        violations.append(
            Violation(
                id="GEN-01",
                path="Pulumi.common.yaml",
                found="a site called common",
                expected="another name: `common` is what the fleet shares",
                remedy="rename the file and its stack",
            )
        )
    violations += [
        Violation(
            id="DOC-01",
            path=path.name,
            found="a name that no stack has, so that nothing would read the file",
            expected="Pulumi.<site>.yaml, the site in lower case letters, digits and dashes",
            remedy="rename the file, or move it away",
        )
        for path in unread_files(folder)
    ]
    parsed_common, found = parse(Common, "common", common) if common else (None, [])
    violations += found
    parsed: dict[str, Site] = {}
    for site_id, value in sites.items():
        if not value:
            continue
        site, found = parse(Site, site_id, value)
        violations += found
        if site is not None:
            parsed[site_id] = site
    if violations or parsed_common is None:
        return None, violations
    return Fleet(parsed_common, parsed), []


def stack_files(folder: Path) -> dict[str, Path]:
    """Stack files of a folder by site id, in order of name."""
    named = ((_STACK_FILE.match(path.name), path) for path in sorted(folder.glob("Pulumi.*.yaml")))
    return {match.group(1): path for match, path in named if match}


def unread_files(folder: Path) -> list[Path]:
    """Files that look like documents to a person, and whose name is that of none."""
    return [
        path
        for path in sorted(folder.glob("*"))
        if path.name != PROJECT_FILE and _LIKE_ONE.match(path.name) and not _STACK_FILE.match(path.name)
    ]


def site_value(path: Path) -> dict[str, Any]:
    """The raw `fleet:site` of a stack file, as the one reader sees it; empty if the file is faulty."""
    data, violations = read(path)
    return {} if violations else _site_value(data) or {}


def common_value(path: Path) -> dict[str, Any]:
    """The raw `fleet:common` of a project file; empty if the file is faulty."""
    data, violations = read(path)
    return {} if violations else _common_value(data) or {}


def _config(data: dict[str, Any]) -> dict[str, Any]:
    config = data.get("config")
    return config if isinstance(config, dict) else {}


def _site_value(data: dict[str, Any]) -> dict[str, Any] | None:
    value = _config(data).get(SITE_KEY)
    return value if isinstance(value, dict) else None


def _common_value(data: dict[str, Any]) -> dict[str, Any] | None:
    entry = _config(data).get(COMMON_KEY)
    value = entry.get("value") if isinstance(entry, dict) else None
    return value if isinstance(value, dict) else None


def _document(path: Path, root: str, pick: Any) -> tuple[dict[str, Any], list[Violation]]:
    data, violations = read(path)
    if violations:
        return {}, violations
    value = pick(data)
    if value:
        return value, []
    key = f"config.{COMMON_KEY}.value" if root == "common" else f"config.{SITE_KEY}"
    missing = Violation(
        id="GEN-07", path=root, found=f"no mapping under {key} in {path.name}", expected="the document", remedy="add it"
    )
    return {}, [missing]


def parse(model: type[M], root: str, value: dict[str, Any]) -> tuple[M | None, list[Violation]]:
    """A model from plain data; `root` is the first part of the paths in the violations."""
    try:
        return model.model_validate_json(json.dumps(value), strict=True), []
    except ValidationError as error:
        details = _primary(error.errors(include_url=False))
        found = [_violation(model, root, detail) for detail in details[:MOST_FAULTS]]
        if len(details) > MOST_FAULTS:
            found.append(_further(root, len(details) - MOST_FAULTS))
        return None, found
    except (TypeError, ValueError) as error:
        wrong = Violation(id="DOC-03", path=root, found=str(error), expected="plain data", remedy="correct it")
        return None, [wrong]


def _primary(details: list[ErrorDetails]) -> list[ErrorDetails]:
    """Without the list that pydantic calls too short because its faulty entries do not count."""
    outer = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    return [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in outer]


def _further(root: str, count: int) -> Violation:
    return Violation(
        id="DOC-03",
        path=root,
        found=f"{count} further faults of shape",
        expected="none",
        remedy="mend those that are named first",
    )


def _violation(model: type[Model], root: str, detail: ErrorDetails) -> Violation:
    kind, message = detail["type"], detail["msg"]
    whole = list(_without_tags(detail["loc"]))
    # The last part of an unknown key is that key, whatever it looks like.
    certain = len(whole) - (kind == "extra_forbidden")
    location = [str(part) for index, part in enumerate(whole) if index >= certain or not _is_type_name(part)]
    path = _USER_INFO.sub(HIDDEN, ".".join([root, *location]))
    if kind == "missing":
        return Violation(
            id="GEN-07",
            path=path,
            found="nothing",
            expected="a value",
            remedy="add it; if nobody can fix it yet, give a plausible one and list its path under `assumed`",
        )
    if kind == "extra_forbidden":
        known = sorted(_fields_at(model, location[:-1]))
        near = difflib.get_close_matches(location[-1], known, n=1)
        meant = f"did you mean {near[0]}?" if near else "remove it"
        return Violation(
            id="DOC-02", path=path, found="an unknown key", expected=f"one of {', '.join(known)}", remedy=meant
        )
    if kind == "union_tag_not_found":
        return Violation(id="GEN-07", path=f"{path}.kind", found="nothing", expected="vm or lxc", remedy="add it")
    if kind == "union_tag_invalid":
        given = _given(str(detail.get("ctx", {}).get("tag", "")))
        return Violation(
            id="DOC-03", path=f"{path}.kind", found=given, expected="vm or lxc", remedy="correct the value"
        )
    found = detail.get("input")
    text = str(found) if isinstance(found, str | int | float | bool) else type(found).__name__
    text = "null" if found is None else text
    return Violation(
        id="DOC-03",
        path=path,
        found=_given(text),
        expected=_expected(kind, message, detail.get("ctx", {})),
        remedy="correct the value",
    )


def _expected(kind: str, message: str, context: dict[str, Any]) -> str:
    if context.get("pattern") == ONE_LINE:
        return "one line of text without control characters"
    if "pattern" in context:
        return f"text that matches {context['pattern']}"
    if kind == "too_short":
        return f"at least {context['min_length']} entries" if context.get("min_length") != 1 else "at least one entry"
    text = message
    for start in ("Input should be ", "a valid ", "Value error, ", "Expected "):
        text = text.removeprefix(start)
    return shown(text[0].lower() + text[1:], 200) if text else kind


def _given(text: str) -> str:
    """A value as the document has it, but for a password in a URL."""
    return shown(_USER_INFO.sub(HIDDEN, text), 120) or "empty text"


def _without_tags(location: tuple[int | str, ...]) -> Iterator[int | str]:
    """Drops the discriminator behind a guest's name; a guest may be called `vm` itself."""
    for index, part in enumerate(location):
        if not (index == 2 and location[0] == "guests" and part in _TAGS):
            yield part


def _is_type_name(part: int | str) -> bool:
    """Pydantic adds the member of a union it tried (`tuple[...]`, `Case`, `constrained-str`) to a location."""
    return isinstance(part, str) and (part in {"Case", "ipv4address", "constrained-str"} or "[" in part or "(" in part)


def _fields_at(model: type[BaseModel], location: list[str]) -> set[str]:
    """Field names that a place in the document allows; empty where the walk leaves the models."""
    models: list[type[BaseModel]] = [model]
    for part in location:
        models = [
            inner
            for outer in models
            for inner in _models_in(outer.model_fields[part].annotation if part in outer.model_fields else outer)
        ]
    return {name for found in models for name in found.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType) or get_args(annotation):
        return [model for argument in get_args(annotation) for model in _models_in(argument)]
    return []
