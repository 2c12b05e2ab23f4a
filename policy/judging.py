"""What a policy is here: a check over one resource or over all of a stack, under the id of its invariant.

A report names resource, path and what was expected, and never what was found: a policy sees secrets in plain text.
Whether a policy stops a run follows INVARIANTS: mandatory where the rule is an error, advisory where a document may
acknowledge it or a warning is all there is.
"""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pulumi_policy import (
    EnforcementLevel,
    Policy,
    ReportViolation,
    ResourceValidationArgs,
    ResourceValidationPolicy,
    StackValidationArgs,
    StackValidationPolicy,
)
from pulumi_policy.policy import PolicyResource, ResourceRemediation

from infra.violation import shown
from policy.marks import outside_secrets
from policy.reading import plain

MANDATORY: Final = EnforcementLevel.MANDATORY
ADVISORY: Final = EnforcementLevel.ADVISORY
NOTING: Final = EnforcementLevel.REMEDIATE  # mandatory, and sees the resource once more before all policies


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One resource as a policy sees it."""

    type: str
    name: str
    urn: str
    props: dict[str, Any]  # plain, secrets included
    protect: bool = False
    ignore_changes: tuple[str, ...] = ()
    secret_outputs: tuple[str, ...] = ()
    provider: str = ""  # URN
    login: dict[str, Any] = field(default_factory=dict)  # inputs of the provider
    parent: str = ""  # URN


@dataclass(frozen=True)
class Fault:
    """What is wrong, in constant words: a value of the resource has no place here."""

    path: str  # of the input, or of the option
    expected: str
    on: Resource | None = None  # in a check over the stack


EachCheck = Callable[[Resource], Iterator[Fault]]
StackCheck = Callable[[list[Resource]], Iterator[Fault]]

POLICIES: list[Policy] = []
# By URN, as the resource was judged by itself: of a stack the engine shows outputs, in a preview mostly unknown.
_inputs: dict[str, dict[str, Any]] = {}


def each(
    id: str, *, level: EnforcementLevel = MANDATORY, remediate: ResourceRemediation | None = None
) -> Callable[[EachCheck], EachCheck]:
    """Registers a check over each resource. Its name is that of the policy, its docstring what the engine prints."""

    def register(check: EachCheck) -> EachCheck:
        def validate(args: ResourceValidationArgs, report: ReportViolation) -> None:
            resource = _resource(args, plain(args.props))
            _inputs[resource.urn] = resource.props
            _judge(lambda: check(resource), resource.urn, report)

        POLICIES.append(
            ResourceValidationPolicy(
                name=_name(id, check),
                description=_statement(check),
                validate=validate,
                remediate=remediate,
                enforcement_level=level,
            )
        )
        return check

    return register


def together(id: str, *, level: EnforcementLevel = MANDATORY) -> Callable[[StackCheck], StackCheck]:
    """Registers a check over all resources of a stack."""

    def register(check: StackCheck) -> StackCheck:
        def validate(args: StackValidationArgs, report: ReportViolation) -> None:
            resources = [_resource(one, _inputs.get(one.urn) or plain(one.props)) for one in args.resources]
            _judge(lambda: check(resources), "", report)

        POLICIES.append(
            StackValidationPolicy(
                name=_name(id, check), description=_statement(check), validate=validate, enforcement_level=level
            )
        )
        return check

    return register


def by_provider(resources: list[Resource]) -> Iterator[list[Resource]]:
    """The resources of each cluster: those that go through one provider."""
    groups: dict[str, list[Resource]] = {}
    for resource in resources:
        if resource.provider and resource.type.startswith("kubernetes:"):
            groups.setdefault(resource.provider, []).append(resource)
    yield from groups.values()


def _name(id: str, check: EachCheck | StackCheck) -> str:
    return f"{id}-{check.__name__.replace('_', '-')}"


def _statement(check: EachCheck | StackCheck) -> str:
    return (check.__doc__ or "").strip().splitlines()[0]


def _resource(args: ResourceValidationArgs | PolicyResource, props: dict[str, Any]) -> Resource:
    parent = args.parent.urn if isinstance(args, PolicyResource) and args.parent else args.opts.parent
    return Resource(
        type=args.resource_type,
        name=args.name,
        urn=args.urn,
        props=props,
        protect=bool(args.opts.protect),
        ignore_changes=tuple(args.opts.ignore_changes),
        secret_outputs=tuple(args.opts.additional_secret_outputs),
        provider=args.provider.urn if args.provider else "",
        login=plain(args.provider.props) if args.provider else {},
        parent=parent or "",
    )


def _judge(check: Callable[[], Iterator[Fault]], urn: str, report: ReportViolation) -> None:
    try:
        for fault in check():
            on = fault.on.urn if fault.on else urn
            report(f"{shown(outside_secrets(on, fault.path), 200)}: expected {fault.expected}", on or None)
    except Exception as error:  # the engine would print its text, which may quote a secret
        at = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(at.filename).name}:{at.lineno}"
        report(f"not judged: {type(error).__name__} at {place}, a fault of the policy pack; mend it there", None)
