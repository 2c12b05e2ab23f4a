"""Unit files: reading them as systemd does, as far as services and timers of a Kubernetes node need it.

Left out: sockets, mounts, slices and sandboxing keys; an unknown key is reported and ignored, as systemd does.
"""

import re
import socket
from dataclasses import dataclass, field
from pathlib import Path

SEARCH_PATH = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system")
SUFFIXES = (".service", ".timer", ".target")
BUILT_IN_TARGETS = frozenset(
    f"{name}.target" for name in ("basic", "multi-user", "default", "network", "network-online", "sysinit", "timers",
                                  "local-fs", "remote-fs", "time-sync", "nss-lookup", "shutdown")
)  # fmt: skip

# Accepted without effect: they shape a machine that the lab does not have (cgroups, other users, sandboxes).
IGNORED_SERVICE_KEYS = frozenset({
    "User", "Group", "Delegate", "TasksMax", "OOMScoreAdjust", "OOMPolicy", "Slice", "Nice", "CPUQuota", "CPUWeight",
    "MemoryMax", "MemoryHigh", "MemoryMin", "IOWeight", "StandardOutput", "StandardError", "StandardInput",
    "SyslogIdentifier", "PIDFile", "PrivateTmp", "ProtectSystem", "ProtectHome", "NoNewPrivileges",
    "AmbientCapabilities", "CapabilityBoundingSet", "LimitMEMLOCK", "LimitSTACK", "GuessMainPID",
    "RuntimeDirectoryMode", "StateDirectoryMode", "WatchdogSec", "SuccessExitStatus", "SendSIGKILL", "ExecReload",
    "MountFlags", "Sockets", "ReadWritePaths", "TTYPath", "UtmpIdentifier",
})  # fmt: skip
SERVICE_KEYS = frozenset({
    "Type", "ExecStart", "ExecStartPre", "ExecStartPost", "ExecStop", "ExecStopPost", "Restart", "RestartSec",
    "TimeoutStartSec", "TimeoutStopSec", "TimeoutSec", "Environment", "EnvironmentFile", "KillMode", "KillSignal",
    "RemainAfterExit", "WorkingDirectory", "UMask", "LimitNOFILE", "LimitNPROC", "LimitCORE", "NotifyAccess",
    "RuntimeDirectory", "StateDirectory",
})  # fmt: skip
UNIT_KEYS = frozenset({
    "Description", "Documentation", "After", "Before", "Wants", "Requires", "BindsTo", "PartOf", "Conflicts",
    "StartLimitIntervalSec", "StartLimitBurst", "ConditionPathExists", "ConditionFileIsExecutable",
    "AssertPathExists", "DefaultDependencies", "OnFailure", "RefuseManualStart", "SourcePath",
})  # fmt: skip
TIMER_KEYS = frozenset({
    "OnCalendar", "OnBootSec", "OnStartupSec", "OnUnitActiveSec", "OnUnitInactiveSec", "OnActiveSec", "Persistent",
    "Unit", "AccuracySec", "RandomizedDelaySec", "FixedRandomDelay", "WakeSystem",
})  # fmt: skip
KNOWN_KEYS = {
    "Unit": UNIT_KEYS,
    "Install": frozenset({"WantedBy", "RequiredBy", "Alias", "Also", "DefaultInstance"}),
    "Service": SERVICE_KEYS | IGNORED_SERVICE_KEYS,
    "Timer": TIMER_KEYS,
}
UNITS_OF_TIME = {"us": 1e-6, "ms": 1e-3, "": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0,
                 "hr": 3600.0, "d": 86400.0, "day": 86400.0, "w": 604800.0}  # fmt: skip


class UnitError(Exception):
    """A unit file that systemd would not load either."""


@dataclass
class UnitFile:
    """One unit with its drop-ins: every value of a key, in order."""

    name: str
    path: Path
    sources: dict[str, float]
    values: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def all(self, section: str, key: str) -> list[str]:
        """Every value of a key that may be repeated."""
        return self.values.get((section, key), [])

    def last(self, section: str, key: str, default: str = "") -> str:
        """The value that counts of a key that may not."""
        values = self.all(section, key)
        return values[-1] if values else default

    def words(self, section: str, key: str) -> list[str]:
        """The words of all values, for lists of units."""
        return [word for value in self.all(section, key) for word in value.split()]

    def seconds(self, key: str, default: float, section: str = "Service") -> float:
        """A time span; 0 and "infinity" are infinite, as for timeouts."""
        text = self.last(section, key)
        return parse_seconds(text) if text else default

    def expand(self, text: str) -> str:
        """Replaces the specifiers."""
        stem = self.name.rsplit(".", 1)[0]
        prefix, _, instance = stem.partition("@")
        known = {"n": self.name, "N": stem, "p": prefix, "i": instance, "I": instance, "H": socket.gethostname(),
                 "t": "/run", "S": "/var/lib", "C": "/var/cache", "L": "/var/log", "E": "/etc", "%": "%"}  # fmt: skip
        return re.sub(r"%(.)", lambda match: known.get(match[1], match[0]), text)

    def changed_on_disk(self) -> bool:
        """Whether daemon-reload is due."""
        return self.sources != {str(path): _mtime(path) for path in _sources(self.name, self.path)}


@dataclass(frozen=True)
class Command:
    """One Exec line."""

    argv: tuple[str, ...]
    may_fail: bool
    expands: bool


def parse_seconds(text: str) -> float:
    """Reads a time span such as "1min 30s". Raises UnitError when it is none."""
    if text.strip() == "infinity":
        return float("inf")
    total = 0.0
    parts = re.findall(r"([0-9.]+)\s*([a-z]*)\s*", text)
    if not parts or "".join(re.findall(r"[0-9.]+\s*[a-z]*\s*", text)) != text.strip():
        raise UnitError(f"Failed to parse time span: {text}")
    for number, unit in parts:
        if unit not in UNITS_OF_TIME:
            raise UnitError(f"Failed to parse time span: {text}")
        total += float(number) * UNITS_OF_TIME[unit]
    return total


def full_name(name: str) -> str:
    """`k3s` means `k3s.service`."""
    return name if name.endswith(SUFFIXES) else f"{name}.service"


def find(name: str) -> Path | None:
    """The file of a unit, an instance's template included."""
    candidates = [name]
    if "@" in name:
        stem, suffix = name.rsplit(".", 1)
        candidates.append(f"{stem.split('@')[0]}@.{suffix}")
    for candidate in candidates:
        for directory in SEARCH_PATH:
            path = Path(directory, candidate)
            if path.is_file():
                return path
    return None


def load(name: str) -> UnitFile | None:
    """Reads a unit and its drop-ins; None when there is no such file."""
    path = find(name)
    if path is None:
        return None
    sources = _sources(name, path)
    unit = UnitFile(name, path, {str(source): _mtime(source) for source in sources})
    for source in sources:
        _parse(unit, source)
    return unit


def split_words(text: str) -> list[str]:
    """Splits as systemd does: quotes at any place, backslash escapes. Raises UnitError on an open quote."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    index = 0
    while index < len(text):
        char = text[index]
        if char == "\\" and quote != "'" and index + 1 < len(text):
            index += 1
            escaped = text[index]
            word = (word or []) + [{"n": "\n", "t": "\t", "s": " ", "r": "\r"}.get(escaped, escaped)]
        elif quote:
            if char == quote:
                quote = ""
            else:
                word = (word or []) + [char]
        elif char in "\"'":
            quote, word = char, word or []
        elif char.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = (word or []) + [char]
        index += 1
    if quote:
        raise UnitError(f"Unbalanced quoting: {text}")
    return [*words, "".join(word)] if word is not None else words


def parse_command(unit: UnitFile, text: str) -> Command:
    """Reads an Exec line with its prefixes. Raises UnitError when it names no program."""
    prefix = re.match(r"[-@:+!]*", text)
    marks = prefix[0] if prefix else ""
    argv = [unit.expand(word) for word in split_words(text[len(marks) :])]
    if not argv:
        raise UnitError(f"Executable name missing in: {text}")
    if "@" in marks:
        argv = [argv[0], *argv[2:]]
    return Command(tuple(argv), may_fail="-" in marks, expands=":" not in marks)


def expand_variables(argv: tuple[str, ...], environment: dict[str, str]) -> list[str]:
    """`${X}` anywhere, `$X` as a word of its own, which is then split; `$$` is a dollar."""
    result: list[str] = []
    for word in argv:
        alone = re.fullmatch(r"\$([A-Za-z_][A-Za-z0-9_]*)", word)
        if alone:
            result += environment.get(alone[1], "").split()
            continue
        result.append(
            re.sub(
                r"\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}",
                lambda match: "$" if match[0] == "$$" else environment.get(match[1], ""),
                word,
            )
        )
    return result


def read_environment(unit: UnitFile) -> dict[str, str]:
    """Environment and EnvironmentFile. Raises UnitError when a file that is not optional is absent."""
    environment: dict[str, str] = {}
    for value in unit.all("Service", "Environment"):
        for word in split_words(unit.expand(value)):
            key, _, text = word.partition("=")
            environment[key] = text
    for value in unit.all("Service", "EnvironmentFile"):
        path = Path(unit.expand(value.removeprefix("-")))
        try:
            text = path.read_text()
        except OSError as error:
            if value.startswith("-"):
                continue
            raise UnitError(f"Failed to load environment files: {error.strerror}") from error
        for raw in text.replace("\\\n", "").splitlines():
            line = raw.strip()
            if line and line[0] not in "#;" and "=" in line:
                key, _, rest = line.partition("=")
                rest = rest.strip()
                environment[key.strip()] = " ".join(split_words(rest)) if rest[:1] in "\"'" else rest
    return environment


def _sources(name: str, path: Path) -> list[Path]:
    drop_ins: dict[str, Path] = {}
    for directory in reversed(SEARCH_PATH):
        for owner in dict.fromkeys([path.name, name]):
            drop_ins |= {file.name: file for file in Path(directory, f"{owner}.d").glob("*.conf")}
    return [path, *(drop_ins[key] for key in sorted(drop_ins))]


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _parse(unit: UnitFile, source: Path) -> None:
    section = ""
    for raw in source.read_text().replace("\\\n", " ").splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        key, value = key.strip(), value.strip()
        if not equals or not section:
            unit.warnings.append(f"{source}: Missing '=' or section, ignoring line: {line}")
        elif section.startswith("X-"):
            continue
        elif section not in KNOWN_KEYS:
            unit.warnings.append(f"{source}: Unknown section '{section}'. Ignoring.")
        elif key not in KNOWN_KEYS[section]:
            unit.warnings.append(f"{source}: Unknown key name '{key}' in section '{section}', ignoring.")
        elif value:
            unit.values.setdefault((section, key), []).append(value)
        else:
            unit.values[section, key] = []
