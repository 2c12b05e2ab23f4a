"""A provider made of resource kinds: everything between the engine's requests and a kind's plain values.

A kind says which SDK class its inputs follow, which properties replace, and acts. Checks, diffs, previews, secret
marks and drift are the same for all kinds and live here.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.provider.experimental.provider import (
    CheckFailure,
    CheckRequest,
    CheckResponse,
    CreateRequest,
    CreateResponse,
    DeleteRequest,
    DiffRequest,
    DiffResponse,
    Provider,
    ReadRequest,
    ReadResponse,
    UpdateRequest,
    UpdateResponse,
)

from lab.providers.arguments import failures
from lab.providers.difference import Change, changes
from lab.providers.difference import Kind as Happening
from lab.providers.serving import OLD_INPUTS, Refused, Unfinished
from lab.providers.values import UNKNOWN, Properties, marked_map, plain_map


class Incomplete(Exception):
    """Raised by a kind when the resource was made, but not all that was asked for was done."""

    def __init__(self, resource_id: str, outputs: Properties, reason: str) -> None:
        super().__init__(reason)
        self.resource_id = resource_id
        self.outputs = outputs


class Kind:
    """One resource type. Methods get plain values with defaults filled in, and raise `Refused` when they fail."""

    token: ClassVar[str]
    arguments: ClassVar[type]
    """Argument class of the SDK."""
    computed: ClassVar[frozenset[str]] = frozenset()
    """Outputs that only acting makes known."""
    always_secret: ClassVar[frozenset[str]] = frozenset()
    """Outputs that are secret whatever the inputs are."""
    replaces: frozenset[str] = frozenset()
    """Input paths (no indices) whose change replaces the resource."""
    kept_when_absent: ClassVar[frozenset[str]] = frozenset()
    """Input paths (no indices) that the provider fills in: leaving them out is no change."""

    def normal(self, inputs: Properties) -> Properties:
        """`inputs` with the real provider's defaults, so that writing a default out is no change."""
        return inputs

    def invalid(self, inputs: Properties) -> Iterator[CheckFailure]:
        """What the SDK class cannot say about the inputs."""
        yield from ()

    def also_changed(self, state: Properties, inputs: Properties, ignored: Iterable[str]) -> Iterator[Change]:
        """Changes that the real provider reports although the inputs are equal."""
        yield from ()

    def must_replace(self, change: Change, old: Properties, new: Properties) -> bool:
        return change.within(self.replaces)

    async def create(self, inputs: Properties, name: str) -> tuple[str, Properties]:
        """Makes the resource; returns its id and its outputs beside the inputs."""
        raise NotImplementedError

    async def read(self, resource_id: str, state: Properties) -> tuple[str, Properties, Properties] | None:
        """Id, observed inputs and outputs of what is there now; none when it is gone. An empty `state`: an import."""
        return resource_id, {}, {name: value for name, value in state.items() if name in self.computed}

    async def update(
        self, resource_id: str, state: Properties, inputs: Properties, changed: list[Change]
    ) -> Properties:
        raise NotImplementedError

    async def delete(self, resource_id: str, state: Properties) -> None:
        """Nothing to do unless a kind says so."""

    def preview_outputs(self, state: Properties, changed: list[Change]) -> Properties:
        """Outputs of an update that is not made yet."""
        return {name: state[name] for name in self.computed if name in state}


class StandIn(Provider):
    """Dispatches the engine's requests to the kinds by type token."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self.kinds = {kind.token: kind for kind in kinds}

    def kind(self, token: str) -> Kind:
        # A URN's type holds the types of the parents as well, parted by "$".
        own = token.rpartition("$")[2]
        if own not in self.kinds:
            raise Refused(
                f"the stand-in provider has no resource {own}; it has: {', '.join(sorted(self.kinds))}. "
                "Where the program needs it, add it to lab/providers."
            )
        return self.kinds[own]

    async def check(self, request: CheckRequest) -> CheckResponse:
        kind = self.kind(request.type)
        inputs = plain_map(request.new_inputs)
        found = list(failures(kind.arguments, inputs)) or list(kind.invalid(inputs))
        given = {name: value for name, value in request.new_inputs.items() if value.value is not None}
        return CheckResponse(inputs=given, failures=found)

    async def diff(self, request: DiffRequest) -> DiffResponse:
        kind = self.kind(request.type)
        state, new = plain_map(request.old_state), kind.normal(plain_map(request.new_inputs))
        old = kind.normal(plain_map(OLD_INPUTS.get()))
        found = [change for change in self._changed(kind, old, new) if not ignored(change, request.ignore_changes)]
        seen = {change.path for change in found}
        found += [more for more in kind.also_changed(state, new, request.ignore_changes) if more.path not in seen]
        replacing = {change.path for change in found if kind.must_replace(change, old, new)}
        return DiffResponse(
            changes=bool(found),
            replaces=sorted({change.top for change in found if change.path in replacing}),
            diffs=sorted({change.top for change in found}),
            detailed_diff={change.path: change.detailed(change.path in replacing) for change in found},
        )

    async def create(self, request: CreateRequest) -> CreateResponse:
        kind = self.kind(request.type)
        inputs = kind.normal(plain_map(request.properties))
        if request.preview:
            outputs: Properties = dict.fromkeys(kind.computed, UNKNOWN)
            return CreateResponse(resource_id="", properties=self._state(kind, inputs, outputs, request.properties))
        try:
            resource_id, outputs = await kind.create(inputs, request.name)
        except Incomplete as error:
            state = self._state(kind, inputs, error.outputs, request.properties)
            raise Unfinished(error.resource_id, state, str(error)) from error
        return CreateResponse(resource_id, self._state(kind, inputs, outputs, request.properties))

    async def read(self, request: ReadRequest) -> ReadResponse:
        kind = self.kind(request.type)
        inputs, state = plain_map(request.inputs), plain_map(request.properties)
        found = await kind.read(request.resource_id, state)
        if found is None:
            return ReadResponse(resource_id="")
        resource_id, observed, outputs = found
        seen = overlaid(inputs, observed) if inputs else observed
        return ReadResponse(
            resource_id=resource_id,
            properties=self._state(kind, kind.normal(seen), outputs, request.properties),
            inputs=marked_map(seen, request.inputs),
        )

    async def update(self, request: UpdateRequest) -> UpdateResponse:
        kind = self.kind(request.type)
        state, inputs = plain_map(request.olds), kind.normal(plain_map(request.news))
        changed = list(self._changed(kind, kind.normal(plain_map(OLD_INPUTS.get())), inputs))
        if request.preview:
            outputs = kind.preview_outputs(state, changed)
            return UpdateResponse(self._state(kind, inputs, outputs, request.news))
        try:
            outputs = await kind.update(request.resource_id, state, inputs, changed)
        except Incomplete as error:
            partial = self._state(kind, inputs, error.outputs, request.news)
            raise Unfinished(request.resource_id, partial, str(error)) from error
        return UpdateResponse(self._state(kind, inputs, outputs, request.news))

    async def delete(self, request: DeleteRequest) -> None:
        await self.kind(request.type).delete(request.resource_id, plain_map(request.properties))

    @staticmethod
    def _changed(kind: Kind, old: Properties, new: Properties) -> Iterator[Change]:
        for change in changes(old, new):
            if not (change.kind is Happening.DELETE and change.within(kind.kept_when_absent)):
                yield change

    @staticmethod
    def _state(
        kind: Kind, inputs: Properties, outputs: Properties, like: Mapping[str, PropertyValue]
    ) -> dict[str, PropertyValue]:
        return marked_map({**inputs, **outputs}, like, kind.always_secret)


def ignored(change: Change, paths: Iterable[str]) -> bool:
    """Whether one of the `ignore_changes` names the leaf, or something that holds it. Indices must be written out."""
    return any(change.path == path or change.path.startswith((f"{path}.", f"{path}[")) for path in paths)


def overlaid(inputs: Any, observed: Any) -> Any:
    """`inputs` with every value replaced by what was observed in its place.

    What was not observed (a password, a timeout) stays as it was given; what was not given stays out, so that a
    refresh shows drift and nothing else. A list that has another length now is taken as observed.
    """
    if isinstance(inputs, Mapping) and isinstance(observed, Mapping):
        return {
            key: overlaid(value, observed[key]) if key in observed else value
            for key, value in inputs.items()
            if not (key in observed and observed[key] is None)
        }
    if isinstance(inputs, list) and isinstance(observed, list) and len(inputs) == len(observed):
        return [overlaid(one, other) for one, other in zip(inputs, observed, strict=True)]
    return observed
