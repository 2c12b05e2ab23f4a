"""APP: apps whose class is settled. Where each class may run is KAR."""

from collections.abc import Iterator

from infra.config.fleet import Fleet
from infra.rules.members import HOLDS_STATE, apps
from infra.rules.registry import Finding, rule
from infra.rules.seeds import ARCHITECTURE

# Words in the names of apps that hold state: those the decision lists, and its databases by product.
HOLD_STATE = frozenset(
    {"tutor", "openedx", "nextcloud", "mlflow", "authentik", "postgresql", "postgres", "neo4j", "qdrant", "mysql"}
    | {"mariadb", "mongodb"}
)


@rule("APP-01", source=ARCHITECTURE)
def apps_with_state_say_so(fleet: Fleet) -> Iterator[Finding]:
    """Tutor, NextCloud, MLflow tracking, Authentik and databases hold state, so that none is spread."""
    for entry in apps(fleet):
        if HOLD_STATE.intersection(entry.name.split("-")) and entry.app.kind not in HOLDS_STATE:
            remedy = "correct the kind: it decides that the app stays in one site"
            yield Finding(f"{entry.path}.kind", entry.app.kind, "stateful or data", remedy)
