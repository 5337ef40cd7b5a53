"""Reads /metrics (Prometheus text format) and says what the KV of a prompt weighs."""
import re

# SmolLM2-135M: 30 layers, 3 KV heads of 64, K and V; a bf16 value is 2 bytes. Whole tiles of 32.
LAYERS, KV_HEADS, HEAD_DIM, PLANES, BF16_BYTES, TILE_TOKENS = 30, 3, 64, 2, 2, 32


def expected_kv_bytes(tokens, value_bytes=BF16_BYTES):
    tiles = -(-tokens // TILE_TOKENS)
    return LAYERS * KV_HEADS * HEAD_DIM * PLANES * value_bytes * TILE_TOKENS * tiles


class Metrics:
    """One scrape. Values are summed over the series that match."""

    def __init__(self, text):
        self.series = []  # (name, labels, value)
        for line in text.splitlines():
            found = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)", line)
            if found:
                labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', found.group(2) or ""))
                self.series.append((found.group(1), labels, float(found.group(3))))

    def has(self, name):
        return any(series[0] == name for series in self.series)

    def sum(self, name, **labels):
        """Errors: KeyError when the page has no such metric at all: a renamed one must not read 0."""
        if not self.has(name):
            raise KeyError(f"/metrics has no {name}")
        total = 0.0
        for series, have, value in self.series:
            if series == name and all(have.get(key) == want for key, want in labels.items()):
                total += value
        return total

    def by(self, name, label):
        """Values of one metric by one label, summed over the others."""
        values = {}
        for series, have, value in self.series:
            if series == name:
                values[have.get(label)] = values.get(have.get(label), 0.0) + value
        return values


def scrape(node, key=None):
    response = node.client(key=key, timeout_s=10).get("/metrics")
    if response.status != 200:
        raise RuntimeError(f"{node.name}: /metrics answers {response.status}")
    return Metrics(response.text)
