"""A farm of processes: a scheduler and workers, each with the environment of one driver."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import farm as drivers
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT = Path(__file__).resolve().parents[2]


class Certificate:
    """A certificate and its key, signed by another one or by itself."""

    def __init__(self, folder: Path, name: str, by: Certificate | None = None) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name((by or self).name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
                critical=False,
            )
            .sign((by or self).key, hashes.SHA256())
        )
        self.cert_file, self.key_file = folder / f"{name}.pem", folder / f"{name}-key.pem"
        pem = serialization.Encoding.PEM
        self.cert_file.write_bytes(made.public_bytes(pem))
        form = serialization.PrivateFormat.PKCS8
        self.key_file.write_bytes(self.key.private_bytes(pem, form, serialization.NoEncryption()))


def tls_files(folder: Path) -> tuple[str, str, str]:
    """Return a new authority's certificate, one that it signed, and its key."""
    authority = Certificate(folder, "ca")
    own = Certificate(folder, "node", authority)
    return str(authority.cert_file), str(own.cert_file), str(own.key_file)


class Farm:
    """Processes of a farm; all are ended when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir()  # what is killed leaves its temporary folder behind
        ca, cert, key = tls_files(folder)
        self.tls = ["--tls-ca", ca, "--tls-cert", cert, "--tls-key", key]
        self.processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Farm:
        self.address = self.start("scheduler", ["farm", "scheduler", "--port", "0"])["address"]
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate(timeout=20)

    def start(
        self, name: str, arguments: list[str], environ: dict[str, str] | None = None, fate: str = ""
    ) -> dict[str, Any]:
        """Start a process and return what it says when it is ready."""
        program = (
            [str(ROOT / "tests" / "farm" / "farm_worker.py"), fate] if fate else ["-m", "gpuedge"]
        )
        environ = {**(environ or os.environ), "TMPDIR": str(self.folder / "tmp")}
        with (self.folder / f"{name}.log").open("w") as log:
            process = self.processes[name] = subprocess.Popen(
                [sys.executable, *program, *arguments, *self.tls, "--json"],
                env=environ, stdout=subprocess.PIPE, text=True, stderr=log,
            )  # fmt: skip
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if line == "}\n":
                return json.loads(text)  # type: ignore[no-any-return]
        raise AssertionError((self.folder / f"{name}.log").read_text()[-3000:])

    def worker(self, serial: str, configuration: str, fate: str = "", **labels: str) -> Any:
        """Start a worker that has the driver of a configuration; return its announcement."""
        drivers.require(configuration)
        environ = drivers.environment_of(configuration)
        environ["GPUEDGE_CACHE_DIR"] = str(drivers.cache(configuration))
        given = [word for name, value in labels.items() for word in ("--label", f"{name}={value}")]
        device = drivers.EVERY[configuration].device
        at = ["--scheduler", self.address, "--serial", serial, "--device", device, "--jobs", "1"]
        return self.start(serial, ["farm", "worker", *at, *given], environ, fate)

    def run(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a run."""
        return subprocess.Popen(
            [sys.executable, "-m", "gpuedge", "farm", "run", "--scheduler", self.address,
             *self.tls, *arguments, "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
