"""Breaks the code on purpose, one edit at a time, and shows which tests notice.

Used by tests/property/break_rules.py and tests/simulation/break_rules.py. A break is (rule, what is
broken, file, old text, new text, tests that must fail).
"""
import argparse
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, folder):
    return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False)


def must(command, folder):
    done = run(command, folder)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout[-3000:]}")


def passes(test, folder, build, arguments):
    command = [f"{build}/bin/{test}", "--gtest_brief=1", *arguments.get(test, [])]
    try:
        return subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL, timeout=600, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def prepare(folder):
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE,
                             check=True).stdout
    subprocess.run(["tar", "x"], cwd=folder, input=archive, check=True)
    must(["cmake", "--preset", "dev", "-B", "build/broken"], folder)
    return "build/broken"


def main(description, all_breaks, arguments):
    """arguments: test -> what its binary is called with. Exits with 1 when a break is not noticed."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "broken-rules")
    parser.add_argument("--build", help="build folder in FOLDER, which is then not filled anew")
    parser.add_argument("--only", default="", help="rules or descriptions that contain this text")
    parser.add_argument("-j", dest="jobs", type=int, default=2)
    options = parser.parse_args()
    breaks = [b for b in all_breaks if options.only in b[0] + " " + b[1]]
    folder, build = options.folder, options.build or prepare(options.folder)
    ninja = ["ninja", "-C", build, f"-j{options.jobs}"]
    all_tests = sorted({test for b in breaks for test in b[5]})
    must([*ninja, *all_tests], folder)
    for test in all_tests:
        if not passes(test, folder, build, arguments):
            sys.exit(f"{test} fails before anything is broken")
    unnoticed = 0
    for rule, what, name, old, new, tests in breaks:
        path = folder / name
        text = path.read_text()
        if old not in text:
            sys.exit(f"{name} no longer has the text that rule {rule} ({what}) is broken in")
        path.write_text(text.replace(old, new))
        try:
            must([*ninja, *tests], folder)
            results = {test: passes(test, folder, build, arguments) for test in tests}
        finally:
            path.write_text(text)
        unnoticed += sum(results.values())
        noticed = ", ".join(f"{test} {'DOES NOT NOTICE' if passed else 'fails'}"
                            for test, passed in results.items())
        print(f"rule {rule}: {what}: {noticed}", flush=True)
    sys.exit(1 if unnoticed else 0)
