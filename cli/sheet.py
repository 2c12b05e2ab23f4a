"""A drawing as plain data, and that data as SVG: boxes, texts and lines at whole coordinates.

Leaves out what is drawn. Widths of texts are estimated on the wide side, since a reader's fonts are not ours: what fits
here fits in DejaVu Sans, and looks loose in narrower ones.
"""

from dataclasses import dataclass, field
from math import ceil
from xml.sax.saxutils import escape

SIZE = 13  # px of a text
LEAD = 19  # px from line to line
_NARROW, _WIDE = set("iljtfrI.,:;|'()[]/! "), set("mwMWGOQ@")


@dataclass(frozen=True)
class Box:
    x: int
    y: int
    width: int
    height: int
    kind: str  # class of the style sheet

    def holds(self, other: "Box") -> bool:
        inside = self.x <= other.x and other.x + other.width <= self.x + self.width
        return inside and self.y <= other.y and other.y + other.height <= self.y + self.height

    def meets(self, other: "Box") -> bool:
        beside = self.x + self.width <= other.x or other.x + other.width <= self.x
        return not (beside or self.y + self.height <= other.y or other.y + other.height <= self.y)


@dataclass(frozen=True)
class Text:
    x: int
    y: int  # base line
    text: str
    kind: str = ""
    size: int = SIZE
    end: bool = False  # x is where it ends

    @property
    def box(self) -> Box:
        """What it covers."""
        wide = width(self.text, self.size, bold="name" in self.kind or "head" in self.kind)
        return Box(self.x - wide if self.end else self.x, self.y - self.size, wide, self.size + 4, "text")


@dataclass(frozen=True)
class Line:
    points: tuple[tuple[int, int], ...]
    kind: str


@dataclass
class Sheet:
    """Everything at its place; boxes before what lies on them."""

    title: str
    description: str
    boxes: list[Box] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    width: int = 0
    height: int = 0

    def box(self, x: int, y: int, wide: int, high: int, kind: str) -> None:
        self.boxes.append(Box(x, y, wide, high, kind))

    def text(self, x: int, y: int, text: str, kind: str = "", *, size: int = SIZE, end: bool = False) -> None:
        self.texts.append(Text(x, y, text, kind, size, end))

    def line(self, kind: str, *points: tuple[int, int]) -> None:
        self.lines.append(Line(points, kind))


def width(text: str, size: int = SIZE, *, bold: bool = False) -> int:
    """Estimated width in px."""
    ems = sum(0.40 if one in _NARROW else 0.93 if one in _WIDE else 0.70 if one.isupper() else 0.64 for one in text)
    return ceil(ems * size * (1.09 if bold else 1))


def widest(texts: list[str], size: int = SIZE, *, bold: bool = False) -> int:
    return max((width(text, size, bold=bold) for text in texts), default=0)


# Light and dark: a picture in a page follows the reader's system, and has its own ground where the page does not.
STYLE = """\
    .ground { fill: #ffffff }
    .site { fill: #f6f8fa; stroke: #8c959f; stroke-width: 1.5 }
    .router { fill: #fff8e6; stroke: #b98a1d; stroke-width: 1.5 }
    .cilium { fill: #e3eefc; stroke: #2f6db5; stroke-width: 1.8 }
    .flannel { fill: #e7f4e4; stroke: #4a8a3c; stroke-width: 1.8 }
    .host { fill: #ffffff; stroke: #8c959f; stroke-width: 1.2 }
    .alone { fill: #f1f3f5; stroke: #8c959f; stroke-width: 1.2 }
    .label { fill: #ffffff }
    .there { stroke-dasharray: 5 3 }
    .tunnel { stroke: #a3442f; stroke-width: 2.5; fill: none }
    .bgp { stroke: #b98a1d; stroke-width: 2.5; fill: none }
    .mesh { stroke: #7a3fb0; stroke-width: 2.5; fill: none; stroke-dasharray: 7 4 }
    text { fill: #1f2328 }
    .name { font-weight: 600 }
    .head { font-weight: 700 }
    .soft { fill: #57606a }
    .red { fill: #a3442f; font-weight: 600 }
    .gold { fill: #7d5b0a; font-weight: 600 }
    .violet { fill: #6a31a0; font-weight: 600 }
    @media (prefers-color-scheme: dark) {
      .ground { fill: #0d1117 }
      .site { fill: #151b23; stroke: #6e7681 }
      .router { fill: #2b2410; stroke: #d4a72c }
      .cilium { fill: #11263f; stroke: #58a6ff }
      .flannel { fill: #14281a; stroke: #57ab5a }
      .host { fill: #0d1117; stroke: #6e7681 }
      .alone { fill: #21262d; stroke: #6e7681 }
      .label { fill: #0d1117 }
      .tunnel { stroke: #f0883e }
      .bgp { stroke: #d4a72c }
      .mesh { stroke: #b78aef }
      text { fill: #e6edf3 }
      .soft { fill: #9198a1 }
      .red { fill: #f0883e }
      .gold { fill: #e3b341 }
      .violet { fill: #c8a5f5 }
    }
"""


def svg(sheet: Sheet) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {sheet.width} {sheet.height}" role="img"'
        ' aria-labelledby="title desc"',
        f'     font-family="system-ui, -apple-system, \'Segoe UI\', Helvetica, Arial, sans-serif" font-size="{SIZE}">',
        f'  <title id="title">{escape(sheet.title)}</title>',
        f'  <desc id="desc">{escape(sheet.description)}</desc>',
        f"  <style>\n{STYLE}  </style>",
        f'  <rect class="ground" width="{sheet.width}" height="{sheet.height}" rx="10"/>',
        *(_rect(box, 6) for box in sheet.boxes),
        *(
            f'  <path class="{line.kind}" d="M{" L".join(f"{x} {y}" for x, y in line.points)}"/>'
            for line in sheet.lines
        ),
        # Lines may pass below a label of another one.
        *(_rect(text.box, 2, "label") for text in sheet.texts if "on-line" in text.kind),
        *(_text(text) for text in sheet.texts),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _rect(box: Box, radius: int, kind: str = "") -> str:
    at = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    return f'  <rect class="{kind or box.kind}" {at} rx="{radius}"/>'


def _text(text: Text) -> str:
    more = f' class="{text.kind}"' if text.kind else ""
    more += f' font-size="{text.size}"' if text.size != SIZE else ""
    more += ' text-anchor="end"' if text.end else ""
    return f'  <text x="{text.x}" y="{text.y}"{more}>{escape(text.text)}</text>'
