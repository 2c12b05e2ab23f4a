"""VyOS configuration as statements: tuples of the words of a `set` command, and the two texts that hold them.

The last word of a statement may be a value or a name: the text alone cannot tell, so a statement does not say. Leaves
out defaults, comments and the trailer of a saved file: none of them is configuration.
Source: the command reference of VyOS 1.4 and 1.5, and the grammar of its saved files.
"""

import re
import shlex
from collections.abc import Iterable, Iterator

Statement = tuple[str, ...]

# `show configuration` and `strip-private` hide secrets and parts of addresses.
_MASKED = re.compile(r"\*{4,}|x{6,}|xxx\.xxx\.\S*")
_SECTIONS = frozenset({"firewall", "interfaces", "nat", "policy", "protocols", "service", "system", "vpn"})
_DEPTH = 64  # blocks in each other; a router has a dozen
_FORBIDDEN = re.compile(r"['\"\\\x00-\x1f\x7f]")
_BARE = re.compile(r"[^\s{}\"']+")
_BLANK = re.compile(r"\s+")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}


class Unreadable(Exception):
    """A text that is no VyOS configuration; the message names the line."""


def command(statement: Statement, *, has_value: bool) -> str:
    """The `set` line. Raises ValueError for a word that VyOS refuses: quotes, backslashes, control characters."""
    for word in statement:
        if not word or _FORBIDDEN.search(word):
            raise ValueError(f"VyOS takes no quote and no control character in {word!r}")
    if not has_value:
        return "set " + " ".join(statement)
    return "set " + " ".join(statement[:-1]) + f" '{statement[-1]}'"


def deletion(statement: Statement) -> str:
    """The `delete` line of a subtree or value."""
    return "delete " + " ".join(shlex.quote(word) for word in statement)


def read(text: str) -> list[Statement]:
    """Statements of a configuration: `set` lines as `show configuration commands` prints them, or a saved file.

    Raises Unreadable, also for text whose secrets VyOS masked with asterisks.
    """
    lines = [line.strip() for line in text.splitlines()]
    meaningful = [line for line in lines if line and not line.startswith(("#", "//", "/*"))]
    if not meaningful:
        raise Unreadable("the text holds no configuration")
    if meaningful[0].startswith("set "):
        statements = list(_commands(lines))
    else:
        statements = list(_flattened(_Reader(text).block(top=True), ()))
    if not any(statement[0] in _SECTIONS for statement in statements):
        raise Unreadable(f"found no configuration of VyOS; expected {', '.join(sorted(_SECTIONS))} or the like")
    for statement in statements:
        if _MASKED.fullmatch(statement[-1]):
            raise Unreadable(
                f"{' '.join(statement[:-1])} is masked: take `show configuration commands`, not `show configuration`"
            )
    return statements


def release_line(text: str) -> str | None:
    """The release line that wrote a saved file, by its trailer; None where there is none."""
    found = re.search(r"""vyos-config-version:\s*"[^"\n]*\bfirewall@(\d+)\b""", text)
    if found is None:
        return None
    number = int(found[1])
    return "1.3 or older" if number < 6 else "1.4" if number < 16 else "1.5"


def _commands(lines: Iterable[str]) -> Iterator[Statement]:
    for number, line in enumerate(lines, 1):
        if not line or line.startswith(("#", "comment ")):
            continue
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise Unreadable(f"line {number}: {error}") from error
        if words[0] != "set" or len(words) < 2:
            raise Unreadable(f"line {number}: expected `set ...`")
        yield tuple(words[1:])


_Item = tuple[tuple[str, ...], "list[_Item] | None"]  # words of the header, and the block if there is one


class _Reader:
    """The grammar of a saved file. A line end matters only after a name or a value."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def block(self, *, top: bool, depth: int = 0) -> list[_Item]:
        if depth > _DEPTH:
            raise Unreadable(f"line {self._line()}: more than {_DEPTH} blocks in each other")
        found: list[_Item] = []
        while True:
            self._skip(newlines=True)
            if self._at >= len(self._text):
                if top:
                    return found
                raise Unreadable(f"line {self._line()}: the file ends inside a block")
            if self._text[self._at] == "}":
                if top:
                    raise Unreadable(f"line {self._line()}: a closing brace too many")
                self._at += 1
                return found
            words = [self._word()]
            self._skip(newlines=False)
            if self._here() not in ("", "\n", "{", "}"):
                words.append(self._word())
                self._skip(newlines=False)
            block: list[_Item] | None = None
            if self._here() == "{":
                self._at += 1
                block = self.block(top=False, depth=depth + 1)
            elif self._here() not in ("", "\n", "}"):
                raise Unreadable(f"line {self._line()}: expected a line end or a brace after {' '.join(words)}")
            found.append((tuple(words), block))

    def _here(self) -> str:
        return self._text[self._at : self._at + 1]

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _skip(self, *, newlines: bool) -> None:
        while self._at < len(self._text):
            if self._text.startswith("/*", self._at):
                end = self._text.find("*/", self._at)
                if end < 0:
                    raise Unreadable(f"line {self._line()}: a comment without end")
                self._at = end + 2
            elif self._text.startswith("//", self._at):
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            elif self._here() in " \t\r" or (newlines and self._here() == "\n"):
                self._at += 1
            else:
                return

    def _word(self) -> str:
        quote = self._here()
        if quote in ("'", '"'):
            return self._quoted(quote)
        match = _BARE.match(self._text, self._at)
        if match is None:
            raise Unreadable(f"line {self._line()}: expected a name, found {quote!r}")
        self._at = match.end()
        return match.group()

    def _quoted(self, quote: str) -> str:
        start = self._line()
        parts: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            letter = self._text[self._at]
            self._at += 1
            if letter == quote:
                return "".join(parts)
            if letter == "\\" and self._at < len(self._text):
                escaped = self._text[self._at]
                self._at += 1
                letter = _ESCAPES.get(escaped, escaped)
            parts.append(letter)
        raise Unreadable(f"line {start}: a quote without end")


def _flattened(items: Iterable[_Item], above: Statement) -> Iterator[Statement]:
    for words, block in items:
        here = above + words
        if block:
            yield from _flattened(block, here)
        else:
            yield here
