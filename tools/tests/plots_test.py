"""bench/plots/draw on results written by hand: which curves it draws, what it refuses."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

DRAW = pathlib.Path(__file__).resolve().parents[2] / "bench" / "plots" / "draw"
sys.path.insert(0, str(DRAW.parent))

import serve_plots  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def result(factor=1.0):
    return {"model_id": "a<b", "dataset_name": "random", "ttfts": [0.2 * factor, None, 0.1 * factor],
            "itls": [[0.01 * factor, 0.03 * factor], [], [0.02 * factor]]}


class PlotsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def save(self, name, content):
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def draw(self, *arguments):
        return subprocess.run([sys.executable, DRAW, "serve", "--to", self.folder, *arguments],
                              capture_output=True, text=True)

    def test_times_are_those_of_successful_requests_in_order(self):
        self.assertEqual(serve_plots.times_ms(result(), "ttfts"), [100, 200])
        self.assertEqual(serve_plots.times_ms(result(), "itls"), [10, 20, 30])

    def test_a_curve_for_each_file(self):
        done = self.draw(f"split={self.save('a.json', result())}", self.save("b.json", result(3)))
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("serve-ttft.svg", "serve-itl.svg"):
            picture = xml.parse(self.folder / name).getroot()
            self.assertEqual(len(picture.findall(f"{SVG}polyline")), 2)
            legend = " ".join(text.text for text in picture.findall(f"{SVG}text"))
            self.assertIn("a<b", legend)
            self.assertIn("split: p50 ", legend)
            self.assertIn("b: p50 ", legend)
        self.assertIn("split: p50 20, p90 28, p99 29.8, max 30 ms (3)", legend)

    def test_a_curve_rises_to_the_right_and_stays_inside(self):
        picture = serve_plots.Curves("t", "s", 1, 100, 1)
        picture.curve(0, "x", [1, 2, 5, 50, 100])
        line = next(part for part in picture.parts if part.startswith("<polyline"))
        points = [tuple(map(float, point.split(",")))
                  for point in line.split('points="')[1].rstrip('"/>').split()]
        self.assertEqual(points, sorted(points, key=lambda point: (point[0], -point[1])))
        self.assertEqual((points[0][1], points[-1][1]), (picture.y(0), picture.y(100)))
        for x, y in points:
            self.assertTrue(0 <= x <= picture.width and 0 <= y <= picture.height)

    def test_equal_input_gives_equal_bytes(self):
        path = self.save("a.json", result())
        self.draw(path)
        first = (self.folder / "serve-itl.svg").read_bytes()
        self.draw(path)
        self.assertEqual((self.folder / "serve-itl.svg").read_bytes(), first)

    def test_other_files_are_refused_by_name(self):
        for name, content in (("peers.json", {"results": []}), ("broken.json", "{"), ("list.json", [])):
            done = self.draw(self.save(name, content))
            self.assertEqual(done.returncode, 1, name)
            self.assertIn(name, done.stderr)
            self.assertNotIn("Traceback", done.stderr)

    def test_a_run_without_a_second_token_has_no_gaps(self):
        nothing = dict(result(), itls=[[], [], []])
        done = self.draw(self.save("a.json", nothing))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("serve-itl.svg: left out", done.stdout)
        self.assertFalse((self.folder / "serve-itl.svg").exists())


if __name__ == "__main__":
    unittest.main()
