"""How a rule is written, and how all of them are run over a fleet.

A rule is a function of the fleet that yields a `Finding` for each fault; the decorator gives it id, level and source.
Its docstring is the one-line statement that `fleet rules` lists.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from infra.config.fleet import Case, Fleet
from infra.violation import Level, Violation


@dataclass(frozen=True)
class Finding:
    """One fault that a rule saw; the rule's own id, level and source are added to it."""

    path: str  # dotted path, starts with a site id or `common`
    found: object
    expected: object
    remedy: str
    level: Level | None = None  # where it differs from the rule's
    sites: tuple[str, ...] = ()  # whose acknowledgement covers it; none: the site that the path starts with


Check = Callable[[Fleet], Iterator[Finding]]


def with_article(noun: str) -> str:
    return f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"


@dataclass(frozen=True)
class Rule:
    """A rule of INVARIANTS with its check."""

    id: str
    level: Level
    source: str
    statement: str
    check: Check
    cases: tuple[str, ...] = ()  # valid cases of an acknowledgement, where the rule lists some
    profile: str | None = None  # sees the sites of this profile alone; none: all of them

    @property
    def family(self) -> str:
        return self.id.split("-", 1)[0]


RULES: dict[str, Rule] = {}


def rule(
    id: str, *, level: Level = Level.ERROR, source: str, cases: tuple[str, ...] = (), profile: str | None = None
) -> Callable[[Check], Check]:
    """Registers the decorated check. An id may have one check only."""

    def register(check: Check) -> Check:
        if id in RULES:
            raise AssertionError(f"two checks for {id}")
        statement = (check.__doc__ or "").strip().splitlines()
        RULES[id] = Rule(id, level, source, statement[0] if statement else "", check, cases, profile)
        return check

    return register


@dataclass(frozen=True)
class Verdict:
    """What the rules say of a fleet."""

    stops: tuple[Violation, ...]  # errors, and acknowledgeable faults nobody acknowledged
    warnings: tuple[Violation, ...]
    accepted: tuple[tuple[Violation, str], ...]  # acknowledged faults with the reason given


def judge(fleet: Fleet) -> Verdict:
    """Runs every rule over the fleet and applies the acknowledgements of the sites."""
    stops: list[Violation] = []
    warnings: list[Violation] = []
    accepted: list[tuple[Violation, str]] = []
    used: set[tuple[str, str]] = set()
    seen = {profile: _of_profile(fleet, profile) for profile in {entry.profile for entry in RULES.values()}}
    for entry in RULES.values():
        for finding in entry.check(seen[entry.profile]):
            level = finding.level or entry.level
            violation = Violation(
                id=entry.id,
                path=finding.path,
                found=str(finding.found) or "an empty text",
                expected=str(finding.expected),
                remedy=finding.remedy,
                source=entry.source,
                level=level,
            )
            sites = finding.sites or (violation.site,)
            reasons = {site: reason for site in sites if (reason := _acknowledgement(fleet, entry, site))}
            if level is not Level.ERROR and reasons:
                used.update((site, entry.id) for site in reasons)
                accepted.append((violation, next(iter(reasons.values()))))
            elif level is Level.WARN:
                warnings.append(violation)
            else:
                stops.append(violation)
    stops += _faulty_acknowledgements(fleet)
    warnings += _idle_acknowledgements(fleet, used)
    return Verdict(tuple(stops), tuple(warnings), tuple(accepted))


def _of_profile(fleet: Fleet, profile: str | None) -> Fleet:
    if profile is None:
        return fleet
    return Fleet(fleet.common, {id: site for id, site in fleet.sites.items() if site.profile == profile})


def _acknowledgement(fleet: Fleet, entry: Rule, site_id: str) -> str | None:
    site = fleet.sites.get(site_id)
    given = site.accept.get(entry.id) if site else None
    if isinstance(given, Case):
        return given.reason.strip() or None if given.case in entry.cases else None
    return given.strip() or None if given and not entry.cases else None


def _faulty_acknowledgements(fleet: Fleet) -> Iterator[Violation]:
    for site_id, site in fleet.sites.items():
        for id, given in site.accept.items():
            entry, path = RULES.get(id), f"{site_id}.accept.{id}"
            if entry is None or entry.level is Level.ERROR:
                found = "an id without a rule" if entry is None else "a rule that cannot be acknowledged"
                known = [known.id for known in RULES.values() if known.level is not Level.ERROR]
                yield Violation(
                    id="OPS-03",
                    path=path,
                    found=found,
                    expected=f"one of {', '.join(sorted(known))}",
                    remedy="remove it",
                )
            elif entry.cases and (not isinstance(given, Case) or given.case not in entry.cases):
                yield Violation(
                    id="OPS-03",
                    path=path,
                    found=given.case if isinstance(given, Case) else "no case",
                    expected=f"{{case, reason}} with case one of {', '.join(entry.cases)}",
                    remedy="name the case",
                )
            elif not entry.cases and isinstance(given, Case):
                yield Violation(
                    id="OPS-03",
                    path=path,
                    found=f"the case {given.case}",
                    expected="a reason alone",
                    remedy="drop the case",
                )
            elif not (given.reason if isinstance(given, Case) else given).strip():
                yield Violation(
                    id="OPS-03", path=path, found="a blank reason", expected="a reason", remedy="say why, or remove it"
                )


def _idle_acknowledgements(fleet: Fleet, used: set[tuple[str, str]]) -> Iterator[Violation]:
    for site_id, site in fleet.sites.items():
        for id in site.accept:
            if id in RULES and RULES[id].level is not Level.ERROR and (site_id, id) not in used:
                yield Violation(
                    id="OPS-03",
                    path=f"{site_id}.accept.{id}",
                    found="an acknowledgement that nothing needs",
                    expected="a fault that it covers",
                    remedy="remove it",
                    level=Level.WARN,
                )
