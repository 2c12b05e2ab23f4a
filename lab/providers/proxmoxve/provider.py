"""The provider itself: its configuration, and the kinds that share one login."""

import json
from typing import Any

import pulumi_proxmoxve as sdk
from pulumi.provider.experimental.provider import CheckRequest, CheckResponse, ConfigureRequest, ConfigureResponse

from lab.providers.arguments import failures
from lab.providers.proxmoxve.api import Api
from lab.providers.proxmoxve.container import Container
from lab.providers.proxmoxve.files import DownloadFile, DownloadFileLegacy, Snippet
from lab.providers.proxmoxve.vm import Vm
from lab.providers.stand_in import StandIn
from lab.providers.values import Properties, plain_map


class Proxmox(StandIn):
    """One instance for each provider resource of the program."""

    def __init__(self) -> None:
        self.api = Api({})
        kinds = (Vm, Container, DownloadFile, DownloadFileLegacy, Snippet)
        super().__init__(kind(self.api) for kind in kinds)

    async def check_config(self, request: CheckRequest) -> CheckResponse:
        inputs = decoded(plain_map(request.new_inputs))
        return CheckResponse(inputs=request.new_inputs, failures=list(failures(sdk.ProviderArgs, inputs)))

    async def configure(self, request: ConfigureRequest) -> ConfigureResponse:
        self.api.config = decoded(plain_map(request.args))
        return await super().configure(request)


def decoded(config: Properties) -> Properties:
    """The SDK sends everything but texts as JSON, inside a text."""
    texts = {"apiToken", "authTicket", "csrfPreventionToken", "endpoint", "minTls", "otp", "password", "tmpDir",
             "username"}  # fmt: skip
    result: dict[str, Any] = {}
    for name, value in config.items():
        if name == "version":  # the engine's own
            continue
        result[name] = json.loads(value) if isinstance(value, str) and name not in texts else value
    return result
