"""The pack as the engine asks it: the SDK's own servicer, given requests made of what the program declares."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import analyzer_pb2
from pulumi_policy import EnforcementLevel, Policy
from pulumi_policy.policy import _PolicyAnalyzerServicer

import cli.plan
from cli.stand_in_inputs import placeholders
from policy.pack import NAME, POLICIES
from tests.sites import three_sites

SIGNATURE = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One resource as the engine describes it."""

    type: str
    name: str = "made-up"
    props: Any = field(default_factory=dict)  # plain data, or a protobuf Struct
    protect: bool = False
    ignore_changes: tuple[str, ...] = ()
    secret_outputs: tuple[str, ...] = ()
    provider: "Asked | None" = None
    parent: str = ""  # URN

    @property
    def urn(self) -> str:
        return f"urn:pulumi:test::fleet::{self.type}::{self.name}"

    @property
    def properties(self) -> struct_pb2.Struct:
        if isinstance(self.props, struct_pb2.Struct):
            return self.props
        struct = struct_pb2.Struct()
        struct.update(self.props)
        return struct

    def described(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "type": self.type,
            "name": self.name,
            "urn": self.urn,
            "properties": self.properties,
            "options": analyzer_pb2.AnalyzerResourceOptions(
                protect=self.protect,
                ignoreChanges=self.ignore_changes,
                additionalSecretOutputs=self.secret_outputs,
                parent=self.parent,
            ),
        }
        if self.provider is not None:
            login = self.provider
            known["provider"] = analyzer_pb2.AnalyzerProviderResource(
                type=login.type, name=login.name, urn=login.urn, properties=login.properties
            )
        return known


@dataclass(frozen=True)
class Report:
    policy: str
    mandatory: bool
    urn: str
    message: str


def secret(value: Any) -> dict[str, Any]:
    """A secret in the wire format of the engine."""
    return {SIGNATURE: SECRET, "value": value}


def reports(resources: Iterable[Asked], policies: list[Policy] = POLICIES) -> list[Report]:
    """What the pack says of a stack: each resource by itself, then all of them."""
    return list(_reports(list(resources), policies))


def _reports(resources: list[Asked], policies: list[Policy]) -> Iterator[Report]:
    pack = _PolicyAnalyzerServicer(NAME, "0.0.1", policies, EnforcementLevel.MANDATORY)
    answers = []
    for one in resources:
        request = analyzer_pb2.AnalyzeRequest(**one.described())
        changed = pack.Remediate(request, None).remediations  # type: ignore[no-untyped-call]
        assert not changed, "a policy of ours changes nothing"
        answers.append((one.urn, pack.Analyze(request, None)))  # type: ignore[no-untyped-call]
    whole = analyzer_pb2.AnalyzeStackRequest(
        resources=[analyzer_pb2.AnalyzerResource(**one.described(), parent=one.parent) for one in resources]
    )
    answers.append(("", pack.AnalyzeStack(whole, None)))  # type: ignore[no-untyped-call]
    for urn, answer in answers:
        for found in answer.diagnostics:
            mandatory = found.enforcementLevel == analyzer_pb2.MANDATORY
            yield Report(found.policyName, mandatory, found.urn or urn, found.message)


@cache
def stack(site_id: str, inputs: Any = placeholders) -> tuple[Asked, ...]:
    """Everything the program declares for a site, as the engine would describe it."""
    asked: dict[str, Asked] = {}

    class Describing(cli.plan.Recorder):
        def RegisterResource(self, request: Any) -> Any:
            reply = super().RegisterResource(request)
            asked[reply.urn] = Asked(
                type=request.type,
                name=request.name,
                props=request.object,
                protect=request.protect,
                ignore_changes=tuple(request.ignoreChanges),
                secret_outputs=tuple(request.additionalSecretOutputs),
                provider=asked.get(request.provider.rsplit("::", 1)[0]),
                parent=asked[request.parent].urn if request.parent in asked else "",
            )
            return reply

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.plan, "Recorder", Describing)
        cli.plan.plan(three_sites(), site_id, inputs)
    return tuple(asked.values())
