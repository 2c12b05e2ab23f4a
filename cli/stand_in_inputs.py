"""Inputs for a plan: placeholders for the secrets, which a plan neither has nor needs."""

import pulumi

from infra.names import MESH_KEYS
from infra.proxmox import Credentials
from infra.site import Inputs


def placeholders() -> Inputs:
    """Secrets that say what they stand for."""

    def secret(name: str) -> pulumi.Output[str]:
        return pulumi.Output.secret(f"<{name}>")

    return Inputs(
        credentials=Credentials(
            api_token=secret("proxmoxApiToken"),
            root_password=secret("proxmoxRootPassword"),
            ssh_private_key=secret("sshPrivateKey"),
            ssh_public_key="ssh-ed25519 <sshPublicKey>",
        ),
        cilium_ca=(secret("ciliumCaCert"), secret("ciliumCaKey")),
        artifacts=None,
        charts=None,
        bgp_password=secret("bgpPassword"),
        mesh={role: (secret(certificate), secret(key)) for role, (certificate, key) in MESH_KEYS.items()},
    )
