"""SEC: how Secrets reach the clusters. That no document carries one follows from the models; containers are LXC-07."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.members import apps, members, selected
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE, TUTOR
from infra.violation import Level

MANY_SECRETS = 50  # from here on Sealed Secrets no longer fits


@rule("SEC-02", source=ARCHITECTURE)
def backend_comes_before_federation(fleet: Fleet) -> Iterator[Finding]:
    """A site with a federated app has a backend for its Secrets."""
    for site_id, site in fleet.sites.items():
        federated = sorted(name for name, app in site.apps.items() if app.federated)
        if federated and site.secrets.backend is None:
            expected = "sealed-secrets, eso-vault or sops"
            remedy = "choose one before apps are federated"
            yield Finding(f"{site_id}.secrets.backend", f"nothing, with {', '.join(federated)}", expected, remedy)


@rule("SEC-03", level=Level.WARN, source=ARCHITECTURE)
def sealed_secrets_stay_few(fleet: Fleet) -> Iterator[Finding]:
    """Sealed Secrets fits fewer than 50 Secrets."""
    for site_id, site in fleet.sites.items():
        if site.secrets.backend == "sealed-secrets" and site.secrets.count >= MANY_SECRETS:
            remedy = "consider External Secrets with Vault: backend eso-vault"
            expected = f"fewer than {MANY_SECRETS} with sealed-secrets"
            yield Finding(f"{site_id}.secrets.count", site.secrets.count, expected, remedy)


@rule("SEC-04", source=ARCHITECTURE)
def seals_are_per_member(fleet: Fleet) -> Iterator[Finding]:
    """With Sealed Secrets a federated app has a seal for each member that may get it."""
    known = {member.name for member in members(fleet)}
    for entry in apps(fleet):
        for index, name in enumerate(entry.app.seals):
            if name not in known:
                expected = f"a member: {', '.join(sorted(known)) or 'there is none'}"
                yield Finding(f"{entry.path}.seals.{index}", f"{name}, which is unknown", expected, "correct the name")
        if not (entry.app.federated and entry.app.has_secrets and entry.site.secrets.backend == "sealed-secrets"):
            continue
        missing = sorted({member.name for member in selected(fleet, entry)} - set(entry.app.seals))
        if missing:
            remedy = "seal its Secrets with the key of each member, or set has_secrets to false where it has none"
            yield Finding(f"{entry.path}.seals", f"no seal for {', '.join(missing)}", "one for each member", remedy)


@rule("SEC-05", source=ARCHITECTURE)
def vault_has_a_place(fleet: Fleet) -> Iterator[Finding]:
    """With External Secrets the document says where Vault is and where it runs."""
    for site_id, site in fleet.sites.items():
        if site.secrets.backend != "eso-vault":
            continue
        if site.secrets.vault is None:
            yield Finding(f"{site_id}.secrets.vault", "nothing with eso-vault", "the URL of Vault", "set it")
        if site.secrets.vault_runs_in is None:
            remedy = "decide where Vault runs"
            yield Finding(f"{site_id}.secrets.vault_runs_in", "nothing with eso-vault", "vm or kubernetes", remedy)


@rule("SEC-06", level=Level.ACK, source=ARCHITECTURE)
def sops_is_accepted_first(fleet: Fleet) -> Iterator[Finding]:
    """SOPS needs an Argo CD plugin and keys of a KMS, and is used once that is accepted."""
    for site_id, site in fleet.sites.items():
        if site.secrets.backend == "sops":
            remedy = "use another, or accept the plugin (ARG-08) and the keys under accept.SEC-06"
            yield Finding(f"{site_id}.secrets.backend", "sops", "sealed-secrets or eso-vault", remedy)


@rule("SEC-08", level=Level.WARN, source=ARCHITECTURE)
def secret_generators_are_legacy(fleet: Fleet) -> Iterator[Finding]:
    """Kustomize secret generators remain with Tutor and are not taken up by other apps."""
    for site_id, site in fleet.sites.items():
        for index, app in enumerate(site.secrets.legacy_generators):
            if app != TUTOR and app in site.apps:  # else DOC-06
                remedy = "use the backend of the site"
                yield Finding(f"{site_id}.secrets.legacy_generators.{index}", app, f"{TUTOR} alone", remedy)
