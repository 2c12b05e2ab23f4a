"""`fleet adopt`: what differs between the document and the real guests, and the lines that make them equal."""

import json
from pathlib import Path
from typing import Any

from cli import documents
from cli.engine import opened
from cli.screen import say, show_json, table
from infra.violation import InvariantError
from operations import adopt


def run(folder: Path, site_id: str, *, as_json: bool) -> int:
    """Exit code: 0 where nothing differs."""
    judgement = documents.judged(folder)
    documents.known_site(judgement, site_id)
    if judgement.fleet is None:
        raise InvariantError(judgement.stops)
    site = judgement.fleet.sites[site_id]
    if not any(guest.existing for guest in site.guests.values()):
        compared = adopt.Comparison(site_id=site_id, guests=())
    else:
        compared = adopt.compare(site_id, site, opened(folder, site_id, site).api_token)
    if as_json:
        show_json(as_plain(compared))
    else:
        show(compared)
    return 1 if compared.differences else 0


def show(compared: adopt.Comparison) -> None:
    if not compared.guests:
        say(f"No guest of {compared.site_id} exists already: there is nothing to adopt.")
        return
    if not compared.differences:
        say(f"Nothing differs: {', '.join(compared.guests)}. An update imports them and changes nothing in Proxmox.")
        return
    table(
        ("guest", "field", "document", "real"),
        [(one.guest, one.field, _shown(one.document), _shown(one.real)) for one in compared.differences],
    )
    if lines := compared.lines():
        say()
        say(f"Pulumi.{compared.site_id}.yaml must say, beside what it says of these guests already:")
        print(lines, end="")
    if by_hand := [one for one in compared.differences if one.remedy]:
        say()
        say("No line of the document helps with:")
        for one in by_hand:
            say(f"{one.guest}.{one.field}: {one.remedy}", "  ")


def as_plain(compared: adopt.Comparison) -> dict[str, Any]:
    return {
        "site": compared.site_id,
        "guests": list(compared.guests),
        "differences": [
            {
                "guest": one.guest,
                "field": one.field,
                "document": one.document,
                "real": one.real,
                "remedy": one.remedy,
            }
            for one in compared.differences
        ],
        "lines": compared.lines(),
    }


def _shown(value: Any) -> str:
    return "nothing" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
