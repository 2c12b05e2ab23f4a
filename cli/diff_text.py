"""How a difference of plans reads: in a terminal, in a comment of a pull request, as JSON."""

import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

from cli.diff import Changed, Field, SiteDiff, compared
from cli.faults import Stop
from cli.revision import WORKING_TREE, Revision, default_base, planned
from cli.screen import say, show_json

LIMIT = 60_000  # characters of a comment; GitHub takes 65,536
MARKER = "<!-- fleet diff -->"
TEXT_LINES = 40  # of one text's difference
VALUE = 200  # characters of one value
CUT = "[... {left} more lines; all of it: ./fleet diff {base} {head}]"


def run(base: str | None, head: str, wanted: Sequence[str], *, as_json: bool, as_markdown: bool) -> int:
    """Plans both sides, prints what differs, and returns the exit code."""
    if as_json and as_markdown:
        raise Stop("found --json and --markdown; expected one of them")
    old, new = planned(base or default_base(), wanted), planned(head, wanted)
    missing = [site for site in wanted if site not in {**old.sites, **new.sites}]
    if missing:
        raise Stop(f"found no site {', '.join(missing)} in either revision; expected the name of a stack file")
    sites = compared(old, new)
    if as_json:
        show_json(document(old, new, sites))
    elif as_markdown:
        print(markdown(old, new, sites), end="")
    else:
        say(f"{old.name} -> {new.name}")
        for one in sites:
            say(f"{one.site}: {summary(one)}")
            for line in lines(one) if one.differs or one.faults else ():
                print(f"  {line}")
    return 1 if any(one.faults for one in sites) else 0


def document(base: Revision, head: Revision, sites: Sequence[SiteDiff]) -> dict[str, Any]:
    return {
        "base": base.name,
        "head": head.name,
        "sites": {
            one.site: {
                "whole": one.whole or None,
                "faults": [{"revision": name, "fault": fault} for name, fault in one.faults],
                "added": [{"type": type, "name": name} for type, name in one.added],
                "removed": [{"type": type, "name": name} for type, name in one.removed],
                "changed": [_plain(changed) for changed in one.changed],
                "secrets_not_compared": one.secrets,
            }
            for one in sites
        },
    }


def _plain(changed: Changed) -> dict[str, Any]:
    return {
        "type": changed.type,
        "name": changed.name,
        "fields": [_plain_field(field) for field in changed.fields],
        "dependencies": {"added": list(changed.now_after), "removed": list(changed.no_more_after)},
    }


def _plain_field(field: Field) -> dict[str, Any]:
    shown: dict[str, Any] = {"path": field.path}
    if field.sides != "new":
        shown["old"] = field.old
    if field.sides != "old":
        shown["new"] = field.new
    return shown


def summary(one: SiteDiff) -> str:
    """One line."""
    if one.faults:
        return f"not comparable, {len({name for name, _ in one.faults})} of the two revisions cannot be planned"
    if one.whole:
        return f"the whole site is {one.whole}: {len(one.added) + len(one.removed)} resources"
    if not one.differs:
        return "no difference"
    only = sum(changed.dependencies_only for changed in one.changed)
    counts = (
        (len(one.added), "added"),
        (len(one.changed) - only, "changed"),
        (len(one.removed), "removed"),
        (only, "with other dependencies only"),
    )
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def lines(one: SiteDiff) -> Iterator[str]:
    """The difference of a site; every line starts with the mark that colours it in a `diff` block."""
    for name, fault in one.faults:
        yield f"! {name}: {_one_line(fault, 1000)}"
    for type, name in one.removed:
        yield f"- {_kind(type)} {name}"
    for type, name in one.added:
        yield f"+ {_kind(type)} {name}"
    told: dict[tuple[str, ...], str] = {}  # differences of texts, by the resource that showed them first
    for changed in sorted(one.changed, key=lambda each: each.dependencies_only):
        yield f"! {_kind(changed.type)} {changed.name}"
        for field in changed.fields:
            if not _is_text(field):
                yield from _field(field)
                continue
            found = tuple(_text(field.old, field.new))
            first = told.setdefault(found, changed.name)
            yield f"      {field.path}: a text" + ("" if first == changed.name else f", changed as in {first}")
            yield from found if first == changed.name else ()
        if changed.no_more_after:
            yield f"-     after: {', '.join(changed.no_more_after)}"
        if changed.now_after:
            yield f"+     after: {', '.join(changed.now_after)}"
    if one.secrets:
        yield f"# {one.secrets} secret values are masked in both plans: whether they differ cannot be seen here"


def _is_text(field: Field) -> bool:
    """Scripts and files: what changed in them is lines."""
    both = isinstance(field.old, str) and isinstance(field.new, str)
    return both and field.sides == "both" and "\n" in field.old + field.new


def _field(field: Field) -> Iterator[str]:
    if field.sides != "new":
        yield f"-     {field.path}: {_value(field.old)}"
    if field.sides != "old":
        yield f"+     {field.path}: {_value(field.new)}"


def _text(old: str, new: str) -> Iterator[str]:
    found = list(difflib.unified_diff(old.splitlines(), new.splitlines(), n=2, lineterm=""))[2:]
    for line in found[:TEXT_LINES]:
        yield f"{line[:1]}         {_one_line(line[1:], VALUE)}" if line[:1] in "+- " else "          @@"
    if len(found) > TEXT_LINES:
        yield f"          [... {len(found) - TEXT_LINES} more lines of this text]"


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)
    return _one_line(json.dumps(text, ensure_ascii=False) if isinstance(value, str) else text, VALUE)


def _one_line(text: str, limit: int) -> str:
    text = "".join(char if char.isprintable() or char == "\t" else "?" for char in text)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def _kind(token: str) -> str:
    return token.rsplit(":", 1)[-1]


def markdown(base: Revision, head: Revision, sites: Sequence[SiteDiff], limit: int = LIMIT) -> str:
    """A comment: its marker, one line for each site, and what differs folded away. Never longer than `limit`."""
    head_lines = [
        MARKER,
        "### What this changes in the sites",
        "",
        f"Declared resources at `{base.name}` and `{head.name}`, compared offline; a preview also knows the state.",
        "",
        *(f"- **{one.site}**: {summary(one)}" for one in sites),
        *(["- no site"] if not sites else []),
        "",
    ]
    parts = ["\n".join(head_lines)]
    shown = [(one, list(lines(one))) for one in sites if one.differs or one.faults]
    left = limit - len(parts[0])
    for number, (one, content) in enumerate(shown):
        # What a site does not use is left to those after it.
        block = _details(one.site, content, left // (len(shown) - number), base, head)
        parts.append(block)
        left -= len(block) + 1
    return "\n".join(parts).rstrip("\n") + "\n"


def _details(site: str, content: Sequence[str], room: int, base: Revision, head: Revision) -> str:
    fence = "`" * max(3, 1 + max((_longest_ticks(line) for line in content), default=0))
    start, end = f"<details><summary>{site}</summary>\n\n{fence}diff\n", f"\n{fence}\n\n</details>\n"
    if len(start) + len(end) + sum(len(line) + 1 for line in content) <= room:
        return start + "\n".join(content) + end
    name = head.name if head.name != "working tree" else WORKING_TREE
    room -= len(start) + len(end) + len(CUT.format(left=len(content), base=base.name, head=name)) + 1
    kept = 0
    while kept < len(content) and room >= len(content[kept]) + 1:
        room -= len(content[kept]) + 1
        kept += 1
    note = CUT.format(left=len(content) - kept, base=base.name, head=name)
    return start + "\n".join([*content[:kept], note]) + end


def _longest_ticks(line: str) -> int:
    longest = run = 0
    for char in line:
        run = run + 1 if char == "`" else 0
        longest = max(longest, run)
    return longest
