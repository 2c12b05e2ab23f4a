"""The Proxmox VE API as the provider uses it: log in late, wait for tasks, pass on the API's own error texts.

Left out: `minTls`, which is accepted and has no effect, one-time passwords, and ready-made tickets.
"""

import asyncio
import logging
import os
from typing import Any, Final
from urllib.parse import urlsplit

import proxmoxer
from proxmoxer.core import AuthenticationError, ResourceException

from lab.providers.serving import Refused
from lab.providers.values import Properties

ANSWER_TIMEOUT_S: Final = 600  # a fake that boots a guest answers when the guest is up
POLL_S: Final = 0.2
TASK_TIMEOUT_S: Final = 1800  # as the provider's own timeouts
ROOT: Final = "root@pam"

logging.getLogger("proxmoxer").setLevel(logging.WARNING)  # it writes every form, passwords too, at INFO


class Api:
    """One login. Nothing is sent before the first call, so a wrong password shows at the first resource."""

    def __init__(self, config: Properties) -> None:
        self.config = config
        self.next_id = asyncio.Lock()
        self._login = asyncio.Lock()
        self._session: proxmoxer.ProxmoxAPI | None = None

    @property
    def is_root_ticket(self) -> bool:
        """Whether the login is root@pam itself: a token never is, not even root's own."""
        return "apiToken" not in self.config and self.config.get("username") == ROOT

    async def get(self, path: str, **query: Any) -> Any:
        return await self._call("GET", path, query)

    async def put(self, path: str, **body: Any) -> Any:
        return await self._call("PUT", path, body)

    async def task(self, method: str, path: str, what: str, **body: Any) -> None:
        """Makes the call and waits for the task it starts. Raises Refused with the task's exit status."""
        upid = await self._call(method, path, body)
        if not isinstance(upid, str) or not upid.startswith("UPID:"):
            return
        node = upid.split(":")[1]
        for _ in range(int(TASK_TIMEOUT_S / POLL_S)):
            status = await self.get(f"nodes/{node}/tasks/{upid}/status")
            if status["status"] != "running":
                break
            await asyncio.sleep(POLL_S)
        else:
            raise Refused(f"{what}: task {upid} still runs after {TASK_TIMEOUT_S} s")
        if status["exitstatus"] != "OK" and not status["exitstatus"].startswith("WARNINGS"):
            raise Refused(f"{what}: task failed to complete with exit code: {status['exitstatus']}")

    async def _call(self, method: str, path: str, values: dict[str, Any]) -> Any:
        session = await self._logged_in(method, path)
        verb = {"GET": "get", "POST": "create", "PUT": "set", "DELETE": "delete"}[method]
        try:
            return await asyncio.to_thread(getattr(session(path), verb), **values)
        except ResourceException as error:
            raise Refused(error_text(error)) from error
        except OSError as error:
            raise Refused(f"failed to perform HTTP {method} request (path: {path}) - Reason: {error}") from error

    async def _logged_in(self, method: str, path: str) -> proxmoxer.ProxmoxAPI:
        async with self._login:
            if self._session is None:
                self._session = await asyncio.to_thread(self._log_in, method, path)
        return self._session

    def _log_in(self, method: str, path: str) -> proxmoxer.ProxmoxAPI:
        endpoint = self.config.get("endpoint")
        if not endpoint:
            raise Refused("no endpoint: give the provider `endpoint`, for example https://192.0.2.10:8006/")
        parts = urlsplit(endpoint)
        if parts.scheme != "https" or parts.hostname is None:
            raise Refused(f"endpoint: found {endpoint!r}; expected https://HOST:8006/")
        options: dict[str, Any] = {
            "port": parts.port or 443,
            # The real provider is a Go program, which takes its authorities from SSL_CERT_FILE.
            "verify_ssl": not self.config.get("insecure", False) and (os.environ.get("SSL_CERT_FILE") or True),
            "timeout": ANSWER_TIMEOUT_S,
        }
        if "apiToken" in self.config:
            user, _, rest = self.config["apiToken"].partition("!")
            name, _, secret = rest.partition("=")
            if not (user and name and secret):
                raise Refused("apiToken: expected USER@REALM!NAME=SECRET")
            options |= {"user": user, "token_name": name, "token_value": secret}
        elif "username" in self.config and "password" in self.config:
            options |= {"user": self.config["username"], "password": self.config["password"]}
        else:
            raise Refused("no credentials: give the provider `apiToken`, or `username` and `password`")
        try:
            return proxmoxer.ProxmoxAPI(parts.hostname, **options)
        except AuthenticationError as error:
            raise Refused(
                f"failed to authenticate HTTP {method} request (path: {path}) - Reason: failed to request auth ticket "
                f"from {endpoint}: {error}"
            ) from error
        except OSError as error:
            raise Refused(f"failed to authenticate HTTP {method} request (path: {path}) - Reason: {error}") from error


def error_text(error: ResourceException) -> str:
    """The API's text in the words of the real provider, with the fields that PVE blames."""
    reason = str(error.content).strip() or str(error.status_message).strip()
    if isinstance(error.errors, dict):
        reason += f" ({'; '.join(f'{name}: {why}' for name, why in error.errors.items())})"
    return f"received an HTTP {error.status_code} response - Reason: {reason}"
