"""Packs the stand-in into one executable file, byte for byte the same for the same sources and interpreter.

The lab's mirror serves that file under the name `k3s`, and scripts verify its SHA-256; hence no clock, no file order of
the file system and no file mode gets into the archive.
"""

import io
import zipfile
from pathlib import Path

_STARTER = b"import sys\n\nfrom k3s.cli import main\n\nsys.exit(main(sys.argv))\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip file can hold


def bundle(target: Path, interpreter: Path) -> None:
    """Writes `target`; it needs `interpreter` (absolute, with aiohttp, cryptography and PyYAML) on the machine."""
    sources = sorted(p for p in Path(__file__).parent.glob("*.py") if p.name not in ("bundle.py", "__main__.py"))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as packed:
        _add(packed, "__main__.py", _STARTER)
        for source in sources:
            _add(packed, f"k3s/{source.name}", source.read_bytes())
    # -B: no __pycache__ could be written beside a file in /usr/local/bin anyway; -E would hide FLEET_LAB_BIN's kin
    target.write_bytes(f"#!{interpreter} -B\n".encode() + archive.getvalue())
    target.chmod(0o755)


def _add(packed: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o644 << 16
    packed.writestr(entry, content)
