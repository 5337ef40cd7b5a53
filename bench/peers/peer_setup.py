"""What the peers need: a virtual environment with pinned versions, and files in several quantisations.

All in ${XDG_CACHE_HOME:-~/.cache}/baton; made once. Standard library only.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# llama-cpp-python is built from source on this machine, for this machine's instruction set.
PEERS = ["llama-cpp-python==0.3.36", "openvino-genai==2026.4.1", "gguf==0.19.0", "numpy==2.4.6"]
SHIPPED = "SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = "gemma3-270m-q4_k_m"
ROOT = HERE.parent.parent


def cache_folder() -> pathlib.Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = pathlib.Path(base) / "baton"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def python() -> pathlib.Path:
    return cache_folder() / "peers-venv" / "bin" / "python"


def install_peers() -> None:
    wanted = "\n".join(PEERS)
    stamp = cache_folder() / "peers-venv" / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    print("installing the peers (llama.cpp is compiled: some minutes)", file=sys.stderr)
    if not python().exists():
        subprocess.run([sys.executable, "-m", "venv", cache_folder() / "peers-venv"], check=True)
    subprocess.run([python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    *PEERS], check=True)
    stamp.write_text(wanted)


def llama_server() -> pathlib.Path:
    """llama-server of the same version, built once from the sources that llama-cpp-python carries."""
    folder = cache_folder() / "llama-server"
    program = folder / PEERS[0] / "llama-server"
    if program.exists():
        return program
    print("building llama-server (about ten minutes)", file=sys.stderr)
    install_peers()
    with tempfile.TemporaryDirectory(prefix="baton-llama-") as work:
        subprocess.run([python(), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--no-binary", "llama-cpp-python", "-d", work, PEERS[0]], check=True)
        archive, = pathlib.Path(work).glob("*.tar.gz")
        subprocess.run(["tar", "xf", archive, "-C", work], check=True)
        sources, = pathlib.Path(work).glob("*/vendor/llama.cpp")
        build = pathlib.Path(work) / "build"
        subprocess.run(["cmake", "-S", sources, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
                        "-DLLAMA_BUILD_EXAMPLES=OFF"], check=True, stdout=sys.stderr)
        subprocess.run(["ninja", "-C", build, "llama-server"], check=True, stdout=sys.stderr)
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(".unfinished")
        shutil.copy2(build / "bin" / "llama-server", unfinished)
        unfinished.rename(program)
    return program


def shipped_model() -> pathlib.Path:
    model = pathlib.Path(os.environ.get("BATON_TEST_MODEL") or cache_folder() / SHIPPED)
    if not model.exists():
        raise SystemExit(f"{model} is missing: run scripts/test, which fetches it, or set "
                         "BATON_TEST_MODEL")
    return model


def gemma_model() -> pathlib.Path:
    """Fetched once, by hash, as scripts/nightly does."""
    model = pathlib.Path(os.environ.get("BATON_TEST_GEMMA")
                         or cache_folder() / "gemma-3-270m-q4_k_m.gguf")
    if not model.exists():
        fetch = ". scripts/lib/setup.sh && cache_lock && ensure_gemma && cache_unlock"
        subprocess.run(["bash", "-euo", "pipefail", "-c", fetch], cwd=ROOT, stdout=sys.stderr,
                       check=False)
    if not model.exists():
        raise FileNotFoundError(f"{model} is missing and could not be fetched")
    return model


def model_file(name: str) -> pathlib.Path:
    """"smollm2-q4_0", "qwen3-0.6b-q8_0" and so on; made from the shipped file, or at random.
    Gemma's is its own: FileNotFoundError says why there is none."""
    if name == "smollm2-q4_1":
        return shipped_model()
    if name == GEMMA:
        return gemma_model()
    path = cache_folder() / "bench" / f"{name}.gguf"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        subprocess.run([python(), HERE / "make_file.py", name, shipped_model(), unfinished],
                       check=True)
        unfinished.rename(path)
    return path
