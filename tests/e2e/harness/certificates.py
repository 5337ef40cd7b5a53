"""Certificates for tests, made on the spot with the openssl program: nothing in the tree expires."""
import pathlib
import subprocess

CURVE = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments):
    argv = ["openssl", *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr}")


class Authority:
    """A CA and what it signs, in one folder."""

    def __init__(self, folder, name):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ca = self.folder / "ca.pem"
        self.ca_key = self.folder / "ca.key"
        _openssl("req", "-x509", "-newkey", *CURVE, "-keyout", self.ca_key, "-out", self.ca,
                 "-days", 1, "-subj", f"/CN={name}")
        self.extensions = self.folder / "extensions"
        self.extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n"
                                   "basicConstraints=critical,CA:FALSE\n")

    def issue(self, name, days=1):
        """(certificate, key) of `name`; negative days: expired."""
        certificate, key, request = (self.folder / f"{name}.{end}" for end in ("pem", "key", "csr"))
        _openssl("req", "-newkey", *CURVE, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.ca_key,
                 "-CAcreateserial", "-days", days, "-extfile", self.extensions, "-out", certificate)
        return certificate, key

    def node_flags(self, name, days=1):
        """Flags of a node whose certificate this CA signed and that trusts this CA."""
        certificate, key = self.issue(name, days)
        return ["--node-tls-cert", certificate, "--node-tls-key", key, "--node-tls-ca", self.ca]
