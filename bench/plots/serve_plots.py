"""The plots of `baton bench serve`: distributions as curves, one per result file.

Reads the keys of --save-result, which are those of vLLM's --save-detailed: its files can be put
beside ours.
"""
from __future__ import annotations

import argparse
import json
import math
import pathlib

from svg import GRID, Svg

LEFT, RIGHT, TOP, PLOT_HEIGHT, PLOT_WIDTH, LEGEND_ROW = 56, 30, 56, 300, 640, 18
# Colours that also differ in lightness, and a dash for each: neither alone must tell them apart.
STYLES = [("#1b6ca8", ""), ("#c0563b", "7 3"), ("#2b7a78", "2 3"), ("#8e5ea2", "9 3 2 3"),
          ("#d09a2d", "4 2"), ("#555555", "1 2")]
MOST_POINTS = 400


def percentile(ascending: list[float], percent: float) -> float:
    rank = percent / 100 * (len(ascending) - 1)
    below = int(rank)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (rank - below)


def ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 times powers of ten within [low, high]."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [digit * 10.0 ** power for power in range(first, last + 1) for digit in (1, 2, 5)]
    return [value for value in values if low <= value * 1.0000001 and value <= high * 1.0000001]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Curves(Svg):
    """Shares of requests or gaps (0 to 100 %) over milliseconds on a logarithmic scale."""

    def __init__(self, title: str, subtitle: str, low: float, high: float, rows: int):
        # A tenth of a decade around, so that no curve runs along the border.
        self.low, self.high = low / 1.26, high * 1.26
        super().__init__(LEFT + PLOT_WIDTH + RIGHT, TOP + PLOT_HEIGHT + 44 + rows * LEGEND_ROW,
                         title, subtitle)
        bottom = TOP + PLOT_HEIGHT
        for value in ticks(self.low, self.high):
            self.line(self.x(value), TOP, self.x(value), bottom, GRID)
            self.text(self.x(value), bottom + 14, number(value), anchor="middle", size=11)
        for share in (0, 25, 50, 75, 90, 99, 100):
            if share in (90, 99):
                more = ' stroke-dasharray="2 3"'
            else:
                more = ""
                self.text(LEFT - 6, self.y(share) + 4, f"{share} %", anchor="end", size=11)
            self.line(LEFT, self.y(share), LEFT + PLOT_WIDTH, self.y(share), GRID, more)
        self.text(LEFT + PLOT_WIDTH, bottom + 28, "ms", anchor="end", size=11)

    def x(self, ms: float) -> float:
        share = math.log(max(ms, self.low) / self.low) / math.log(self.high / self.low)
        return LEFT + PLOT_WIDTH * min(share, 1.0)

    def y(self, percent: float) -> float:
        return TOP + PLOT_HEIGHT * (1 - percent / 100)

    def curve(self, row: int, label: str, ascending: list[float]) -> None:
        colour, dash = STYLES[row % len(STYLES)]
        count = min(len(ascending), MOST_POINTS)
        shares = [100 * i / max(count - 1, 1) for i in range(count)]
        points = " ".join(f"{self.x(percentile(ascending, share)):.1f},{self.y(share):.1f}"
                          for share in shares)
        style = f'stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dash}"' if dash else "")
        self.parts.append(f'<polyline fill="none" {style} points="{points}"/>')
        y = TOP + PLOT_HEIGHT + 44 + row * LEGEND_ROW
        self.parts.append(f'<line x1="{LEFT}" x2="{LEFT + 30}" y1="{y - 4}" y2="{y - 4}" {style}/>')
        figures = ", ".join(f"p{percent:g} {number(percentile(ascending, percent))}"
                            for percent in (50, 90, 99))
        self.text(LEFT + 38, y, f"{label}: {figures}, max {number(ascending[-1])} ms "
                                f"({len(ascending):,})")


def times_ms(result: dict, key: str) -> list[float]:
    """Ascending; of successful requests. Errors: KeyError where the file lacks the detail."""
    values = result[key]
    flat = [gap for gaps in values for gap in gaps] if key == "itls" else values
    return sorted(1e3 * value for value in flat if value is not None)


def draw(results: list[tuple[str, dict]], key: str, title: str, path: pathlib.Path) -> bool:
    """False when no file has such times."""
    curves = [(label, times_ms(result, key)) for label, result in results]
    curves = [(label, values) for label, values in curves if values]
    if not curves:
        return False
    # Tokens that were read together have no gap between them: those few lie on the left border.
    low = min(percentile(values, 5) for _, values in curves)
    high = max(values[-1] for _, values in curves)
    first = results[0][1]
    subtitle = (f"{first.get('model_id', '')}, {first.get('dataset_name', 'unknown')} prompts; share "
                "of all that took at most so long")
    picture = Curves(title, subtitle, max(low, 0.01), max(high, 0.02), len(curves))
    for row, (label, values) in enumerate(curves):
        picture.curve(row, label, values)
    picture.write(path)
    return True


def read(argument: str) -> tuple[str, dict]:
    label, equals, name = argument.rpartition("=")
    path = pathlib.Path(name)
    try:
        result = json.loads(path.read_text())
        if not isinstance(result, dict) or "ttfts" not in result or "itls" not in result:
            raise ValueError("no ttfts and itls in it: not of bench serve --save-result")
    except (OSError, ValueError) as why:
        raise SystemExit(f"{path}: {why}") from why
    return label if equals else path.stem, result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="draw serve", description=__doc__)
    parser.add_argument("--to", type=pathlib.Path, default=pathlib.Path("."), help="folder")
    parser.add_argument("results", nargs="+", metavar="[LABEL=]RESULT.json")
    options = parser.parse_args(arguments)
    results = [read(argument) for argument in options.results]
    options.to.mkdir(parents=True, exist_ok=True)
    for key, title, name in (("ttfts", "Time to the first token", "serve-ttft.svg"),
                             ("itls", "Gaps between tokens", "serve-itl.svg")):
        if draw(results, key, title, options.to / name):
            print(options.to / name)
        else:
            print(f"{name}: left out, no request has such times")
    return 0
