"""The one reader of the YAML files: core schema of YAML 1.2, so that a value means here what it means to the engine.

PyYAML's own rules are those of YAML 1.1: `on` would be true and `12:34:56` a number. Anchors and duplicate keys are
refused: a document that a person reviews says each thing once, where it stands.
"""

import json
import re
import stat
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from infra.violation import Violation

SIZE_LIMIT = 1 << 20  # bytes; a document is written by people
_NUMBER_LIKE = re.compile(r"^0[0-9]+$|^[0-9]+(:[0-5]?[0-9])+$|^\d{4}-\d{1,2}-\d{1,2}")


class _Fault(yaml.YAMLError):
    def __init__(self, mark: yaml.Mark | None, found: str, expected: str) -> None:
        super().__init__(found)
        self.mark, self.found, self.expected = mark, found, expected


class _CoreLoader(Composer, yaml.CSafeLoader):
    """Events come from libyaml, which is a multiple faster; nodes are composed here, where some are refused."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def __init__(self, stream: str) -> None:
        yaml.CSafeLoader.__init__(self, stream)
        self.anchors: dict[str, yaml.Node] = {}  # what Composer would set

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Fault(event.start_mark, "an anchor or alias", "the value written out")
        if getattr(event, "tag", None):
            raise _Fault(event.start_mark, f"the tag {event.tag}", "a plain value")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise _Fault(key.start_mark, f"the key {getattr(key, 'value', '?')}", "text as key (quote it)")
            if key.value in keys:
                raise _Fault(key.start_mark, f"the key {key.value} twice", "each key once")
            keys.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        plain = isinstance(node, yaml.ScalarNode) and not node.style
        if plain and node.tag.endswith(":str") and _NUMBER_LIKE.match(str(node.value)):
            raise _Fault(node.start_mark, str(node.value), "a number without leading zeros, or text in quotes")
        return super().construct_scalar(node)


for _tag, _pattern, _first in (
    ("null", r"^(~|null|Null|NULL|)$", "~nN\0"),
    ("bool", r"^(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(0|[1-9][0-9]*)$|^0o[0-7]+$|^0x[0-9a-fA-F]+$", "-+0123456789"),
    (
        "float",
        r"^[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$",
        "-+.0123456789",
    ),
):
    for _char in _first:
        _CoreLoader.yaml_implicit_resolvers.setdefault("" if _char == "\0" else _char, []).append(
            (f"tag:yaml.org,2002:{_tag}", re.compile(_pattern))
        )


def read(path: Path) -> tuple[dict[str, Any], list[Violation]]:
    """The mapping a file holds, or what is wrong with the file (id DOC-01)."""
    try:
        return _parse(path), []
    except _Fault as fault:
        where = f"{path.name}:{fault.mark.line + 1}" if fault.mark else path.name
        return {}, [
            Violation(id="DOC-01", path=where, found=fault.found, expected=fault.expected, remedy="mend the file")
        ]


def _text(path: Path) -> str:
    """Raises _Fault, OSError or UnicodeDecodeError. Opens no pipe and no device: reading one may never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise _Fault(None, "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device", "a file")
    with path.open("rb") as file:
        content = file.read(SIZE_LIMIT + 1)
    if len(content) > SIZE_LIMIT:
        raise _Fault(None, f"more than {SIZE_LIMIT} bytes", f"at most {SIZE_LIMIT} bytes")
    return content.decode("utf-8")


def _parse(path: Path) -> dict[str, Any]:
    """Raises _Fault alone."""
    try:
        data = yaml.load(_text(path), Loader=_CoreLoader)
    except _Fault:
        raise
    except OSError as error:
        raise _Fault(None, (error.strerror or "no file").lower(), "a readable file") from error
    except UnicodeDecodeError as error:
        raise _Fault(None, "bytes that are not UTF-8", "a UTF-8 file") from error
    except yaml.MarkedYAMLError as error:
        problem = f"broken YAML ({error.problem or 'no more known'})"
        raise _Fault(error.problem_mark, problem, "YAML: look at indentation, colons and tabs there") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _Fault(None, next(iter(str(error).splitlines()), type(error).__name__), "YAML") from error
    if not isinstance(data, dict):
        raise _Fault(None, type(data).__name__, "a mapping at the top")
    try:
        json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        raise _Fault(
            None, "half a character, or a number without a value", "text and numbers as JSON has them"
        ) from error
    return data
