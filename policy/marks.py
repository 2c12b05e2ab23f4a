"""Which inputs of a resource are secret.

The engine shows that to a remediation alone; a policy gets plain text afterwards. So a remediation that changes nothing
notes it, for the checks of the same resource.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pulumi_policy import ResourceValidationArgs
from pulumi_policy.secret import Secret

from policy.reading import Path, dotted

_noted: dict[str, frozenset[Path]] = {}  # by URN: what is secret as a whole


def note(args: ResourceValidationArgs) -> None:
    """The remediation."""
    _noted[args.urn] = frozenset(_secret_paths(args.props, ()))


def is_secret(urn: str, path: Path) -> bool:
    """A resource whose marks were not noted has none: better a false stop than a secret in the state."""
    noted = _noted.get(urn, frozenset())
    return any(path[:length] in noted for length in range(len(path) + 1))


def outside_secrets(urn: str, path: str) -> str:
    """A dotted path as far as it may be told: what a secret holds are keys as well."""
    for mark in sorted(map(dotted, _noted.get(urn, ()))):
        if path.startswith((f"{mark}.", f"{mark}[")):
            return mark
    return path


def _secret_paths(value: Any, path: Path) -> Iterator[Path]:
    if isinstance(value, Secret):
        yield path
    elif isinstance(value, Mapping):
        raw = value if isinstance(value, dict) else value["__target"]  # reading through it would drop the marks
        for key, entry in raw.items():
            yield from _secret_paths(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _secret_paths(entry, (*path, index))
