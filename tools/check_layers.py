#!/usr/bin/env python3
"""Checks that each folder includes only what the graph of docs/architecture.md allows.

Also: Asio and Beast headers only in net/, ucx/, http/, handoff/, membership/, apps/; `steady_timer` and
`::now()` only in base/, net/ and apps/ (time reaches the rest through Clock). Prints each bad line;
exit code 1 if there is one.
"""
import pathlib
import re
import sys

# folder -> folders that it may include directly (message/request.h and node.h are data for all).
ALLOWED = {
    "base": set(),
    "tensor": {"base"},
    "net": {"base"},
    "kernels": {"base", "tensor"},
    "files": {"base", "tensor"},
    "kv": {"base", "tensor"},
    "sample": {"base"},
    "wire": {"base"},
    "ucx": {"base", "net"},
    "text": {"base", "files", "sample"},
    "model": {"base", "tensor", "files"},
    "sched": {"base", "kv"},
    "message": {"base", "kv", "sample"},
    "backend": {"base", "tensor", "kernels", "files", "model", "kv", "sample", "message"},
    "engine": {"base", "backend", "sched", "message", "kv", "sample"},
    "handoff": {"base", "net", "wire", "kv", "message", "sample"},
    "http": {"base", "net"},
    "cluster": {"base", "message"},
    "membership": {"base", "net", "http", "message"},
    "router": {"base", "kv", "message", "cluster", "sample"},
    "api": {"base", "text", "http", "message", "sample"},
}
# Narrower than the folder: includer -> folder -> the only headers allowed.
ONLY = {
    "router": {"message": {"request.h", "node.h", "prefix_root.h"}, "cluster": {"records.h"},
               "kv": {"layout.h", "tile_digest.h"}},
    "api": {"message": {"request.h", "node.h"}},
    "cluster": {"message": {"node.h"}},
    "membership": {"message": {"node.h"}},
}
ASIO = {"net", "ucx", "http", "handoff", "membership", "apps"}
TIME = {"base", "net", "apps"}


def owner(path: pathlib.Path) -> str:
    return path.parts[1] if path.parts[0] == "baton" else path.parts[0]


def main() -> int:
    root = pathlib.Path(__file__).resolve().parent.parent
    bad = []
    for top in ("baton", "apps"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".h", ".cpp", ".inl"):
                continue
            relative = path.relative_to(root)
            folder = owner(relative)
            is_test = path.stem.endswith("_test")
            if folder != "apps" and folder not in ALLOWED:
                bad.append(f"{relative}: folder '{folder}' is not in the graph")
                continue
            for number, line in enumerate(path.read_text().splitlines(), 1):
                where = f"{relative}:{number}"
                found = re.match(r'\s*#\s*include\s+"baton/([^/"]+)/([^"]+)"', line)
                if found and folder != "apps":
                    target, header = found.groups()
                    if target != folder and target not in ALLOWED[folder]:
                        bad.append(f"{where}: {folder}/ must not include {target}/")
                    only = ONLY.get(folder, {}).get(target)
                    if only is not None and header not in only:
                        bad.append(f"{where}: {folder}/ may include only {sorted(only)} of {target}/")
                if re.match(r"\s*#\s*include\s+<boost/(asio|beast)", line) and folder not in ASIO:
                    bad.append(f"{where}: Asio is not allowed in {folder}/")
                if folder not in TIME and not is_test:
                    if "steady_timer" in line or re.search(r"_clock::now\(\)", line):
                        bad.append(f"{where}: time must come through Clock in {folder}/")
    print("\n".join(bad) if bad else "layers: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
