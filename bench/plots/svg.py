"""What the plots are made of: SVG by hand, so that the same input gives the same bytes."""
from __future__ import annotations

import html
import pathlib

INK, GRID = "#222222", "#d8d8d8"


class Svg:
    """A white picture with a title, a line below it, and whatever is added."""

    def __init__(self, width: int, height: int, title: str, subtitle: str):
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>']
        self.text(10, 20, title, size=15, weight="bold")
        self.text(10, 38, subtitle)

    def text(self, x: float, y: float, text: str, anchor="start", size=12, weight="normal") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}" '
                          f'font-size="{size}" font-weight="{weight}">{html.escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, more="") -> None:
        self.parts.append(f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:g}" y2="{y2:g}" '
                          f'stroke="{colour}"{more}/>')

    def write(self, path: pathlib.Path) -> None:
        path.write_text("\n".join(self.parts) + "\n</svg>\n")
