"""tools/canonical as a module, so that tests and the demo compare what the tool prints."""
import importlib.machinery
import importlib.util
import pathlib

_PATH = pathlib.Path(__file__).resolve().parents[3] / "tools" / "canonical"
_loader = importlib.machinery.SourceFileLoader("baton_canonical", str(_PATH))
_module = importlib.util.module_from_spec(importlib.util.spec_from_loader("baton_canonical", _loader))
_loader.exec_module(_module)

canonical = _module.canonical
parse_sse = _module.parse_sse
CanonicalError = _module.CanonicalError
