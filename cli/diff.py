"""What a change of code or documents changes in the resources of each site: two plans, compared.

Leaves out how a revision is planned (`cli.revision`), how a difference reads (`cli.diff_text`), and whatever only the
state knows: a plan says what is declared, a preview what that means for what exists.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cli.plan import MASK
from cli.revision import Resources, Revision, SitePlan

_COMPARED = ("parent", "provider", "protect")
_MISSING = object()


@dataclass(frozen=True, kw_only=True)
class Field:
    """One changed value. A side without it is None and not in `sides`."""

    path: str
    old: Any
    new: Any
    sides: str  # `both`, `old` or `new`: who has the value


@dataclass(frozen=True, kw_only=True)
class Changed:
    """A resource that both sides declare, differently."""

    type: str
    name: str
    fields: tuple[Field, ...]
    no_more_after: tuple[str, ...] = ()  # dependencies that went
    now_after: tuple[str, ...] = ()  # and that came

    @property
    def dependencies_only(self) -> bool:
        return not self.fields


@dataclass(frozen=True, kw_only=True)
class SiteDiff:
    """All that differs in one site."""

    site: str
    added: tuple[tuple[str, str], ...] = ()  # type and name
    removed: tuple[tuple[str, str], ...] = ()
    changed: tuple[Changed, ...] = ()
    whole: str = ""  # `added` or `removed`, where only one side has the site
    faults: tuple[tuple[str, str], ...] = ()  # revision and why it could not be planned
    secrets: int = 0  # values that both sides mask, so that nobody can say whether they differ

    @property
    def differs(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.whole)


def compared(base: Revision, head: Revision) -> list[SiteDiff]:
    """Site by site, those of either side."""
    return [_site(site, base, head) for site in sorted({*base.sites, *head.sites})]


def _site(site: str, base: Revision, head: Revision) -> SiteDiff:
    old, new = (side.sites.get(site, SitePlan(resources={})) for side in (base, head))
    whole = "added" if site not in base.sites else "removed" if site not in head.sites else ""
    faults = tuple((side.name, fault) for side in (base, head) for fault in _faults(side, site))
    if old.resources is None or new.resources is None:
        return SiteDiff(site=site, whole=whole, faults=faults)
    return SiteDiff(
        site=site,
        whole=whole,
        faults=faults,
        added=tuple(key for key in new.resources if key not in old.resources),
        removed=tuple(key for key in old.resources if key not in new.resources),
        changed=tuple(_changed(old.resources, new.resources)),
        secrets=sum(
            _common_secrets(old.resources[key].get("inputs"), one.get("inputs"))
            for key, one in new.resources.items()
            if key in old.resources
        ),
    )


def _faults(side: Revision, site: str) -> tuple[str, ...]:
    return side.sites[site].faults if site in side.sites else ()


def _changed(old: Resources, new: Resources) -> Iterator[Changed]:
    for key, after in new.items():
        before = old.get(key)
        if before is None:
            continue
        fields = [
            Field(path=name, old=before.get(name), new=after.get(name), sides="both")
            for name in _COMPARED
            if before.get(name) != after.get(name)
        ]
        fields += _differences("", before.get("inputs"), after.get("inputs"))
        was, now = ({*one.get("dependencies", ())} for one in (before, after))
        if fields or was != now:
            yield Changed(
                type=key[0],
                name=key[1],
                fields=tuple(fields),
                no_more_after=tuple(sorted(was - now)),
                now_after=tuple(sorted(now - was)),
            )


def _differences(path: str, old: Any, new: Any) -> Iterator[Field]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _differences(_under(path, key), old.get(key, _MISSING), new.get(key, _MISSING))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            yield from _differences(
                f"{path}[{index}]",
                old[index] if index < len(old) else _MISSING,
                new[index] if index < len(new) else _MISSING,
            )
    elif old is _MISSING:
        yield Field(path=path, old=None, new=new, sides="new")
    elif new is _MISSING:
        yield Field(path=path, old=old, new=None, sides="old")
    elif old == new and type(old) is type(new):  # asked of leaves alone: in Python {"x": 1} equals {"x": True}
        return
    elif _masked(old) or _masked(new):
        # It was or becomes secret: the side in plain text is not worth showing any more.
        yield Field(path=path, old=_hidden(old), new=_hidden(new), sides="both")
    else:
        yield Field(path=path, old=old, new=new, sides="both")


def _masked(value: Any) -> bool:
    """Whether a secret is a value, or lies in it."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value == MASK or any(map(_masked, inner))


def _hidden(value: Any) -> str:
    return MASK if _masked(value) else "(not secret)"


def _under(path: str, key: str) -> str:
    part = key if all(char.isalnum() or char in "_-" for char in key) and key else f'["{key}"]'
    return f"{path}{part}" if part.startswith("[") or not path else f"{path}.{part}"


def _common_secrets(old: Any, new: Any) -> int:
    if isinstance(old, dict) and isinstance(new, dict):
        return sum(_common_secrets(old[key], new[key]) for key in old if key in new)
    if isinstance(old, list) and isinstance(new, list):
        return sum(_common_secrets(one, other) for one, other in zip(old, new, strict=False))
    return int(old == new == MASK)
