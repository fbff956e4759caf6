"""Private keys of a repository: files that nobody else can read, never beside what is published."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.signer import CryptoSigner, Key

from gpuedge.core.errors import UpdateError
from gpuedge.safety import paths

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
for _flag in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _flag, 0)

MAX_KEY_BYTES = 1 << 16


def check_apart(keys: Path, repository: Path) -> None:
    """Refuse a folder of keys that is, holds or lies in the folder that is published.

    Raises
    ------
    UpdateError (GE-601)
        They are not apart.
    """
    try:
        inner, outer = keys.expanduser().resolve(), repository.expanduser().resolve()
    except (OSError, RuntimeError) as error:  # the home of nobody; links in a circle
        raise UpdateError("A folder cannot be used.", known=str(error)) from None
    if inner.is_relative_to(outer) or outer.is_relative_to(inner):
        raise UpdateError(
            "Private keys must not lie where they could be published.",
            known=f"keys: {inner}, repository: {outer}",
            hint="two folders, neither in the other",
        )


def make_key(folder: Path, name: str) -> Key:
    """Make a key, write its private half to ``NAME.pem`` with mode 0600, return the public half.

    Raises
    ------
    UpdateError (GE-601)
        There is such a file already (no key is ever overwritten), or it cannot be written.
    """
    signer = CryptoSigner.generate_ed25519()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder / f"{name}.pem", _FLAGS, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(signer.private_bytes)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UpdateError("A key cannot be written.", known=str(error)) from None
    return signer.public_key


def read_keys(folder: Path) -> dict[str, Ed25519PrivateKey]:
    """Return the private keys in all ``*.pem`` files of a folder, by their public halves.

    Raises
    ------
    UpdateError (GE-601)
        A file can be read by others, or holds no Ed25519 key.
    """
    found = (_read(path) for path in sorted(folder.expanduser().glob("*.pem")))
    return {key.public_key().public_bytes_raw().hex(): key for key in found}


def _read(path: Path) -> Ed25519PrivateKey:

    try:
        data = paths.read_start(path, MAX_KEY_BYTES)  # never waits for a pipe
        mode = stat.S_IMODE(path.stat().st_mode)
        if os.name == "posix" and mode & 0o077:
            raise UpdateError(
                "A private key can be read by others.",
                known=f"{path} has mode {mode:04o}",
                hint=f"chmod 600 {path}, or make a new key if others may have read it",
            )
        key = load_pem_private_key(data, None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UpdateError("A key cannot be read.", known=f"{path}: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UpdateError("A key cannot be used.", known=f"{path} holds no Ed25519 key")
    return key
