"""Arrays from and to files: ``.npy`` and ``.npz``, told apart by how they begin."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from gpuedge.core.errors import InputError, UsageError
from gpuedge.graph.ir import Array
from gpuedge.safety.paths import check_readable, open_regular, read_start, save_named

ZIP = (b"PK\x03\x04", b"PK\x05\x06")
"""What a .npz file begins with; the second is one without arrays."""

ACCEPTED = ".npy and .npz files are read"
OTHERS = {
    b"\x89PNG": "a PNG image", b"\xff\xd8\xff": "a JPEG image", b"GIF8": "a GIF image",
    b"BM": "a BMP image", b"II*\0": "a TIFF image", b"MM\0*": "a TIFF image",
    b"RIFF": "a WebP image or another RIFF file", b"%PDF": "a PDF file",
}  # fmt: skip
"""What files begin with that users take for inputs."""

MAX_GROWTH, MUCH = 100, 256 << 20
"""A .npz file whose arrays have more than `MUCH` bytes, and are so many times as large as the file,
is refused: data of any use do not compress like that, and unpacking would take all memory."""


def read_inputs(pairs: Sequence[str]) -> dict[str, Array]:
    """Return the arrays named by ``NAME=FILE`` arguments, and all of ``FILE.npz`` arguments.

    Raises
    ------
    UsageError (GE-200)
        An argument of another form, or an input named twice.
    InputError (GE-203)
        A file that cannot be read.
    """
    arrays: dict[str, Array] = {}
    for pair in pairs:
        name, equals, path = pair.partition("=")
        if not equals and pair.endswith(".npz"):
            given = read_arrays(pair)
        elif not (name and equals and path):
            raise UsageError(
                f"--input {pair!r} does not have the form NAME=FILE.",
                asked_by="--input",
                hint="--input image=image.npy, or arrays.npz",
            )
        else:
            given = {name: read_array(path, name)}
        for each, array in given.items():
            if each in arrays:
                raise UsageError(f"The input {each!r} is given twice.", asked_by="--input")
            arrays[each] = array
    return arrays


def _start(path: str) -> bytes:
    check_readable(path, "input file", "--input")
    return read_start(path, 8)


def read_array(path: str, name: str = "") -> Array:
    """Return the array in a .npy file, or that called `name`, or the only one, of a .npz file.

    Pickled objects are never loaded. Raises InputError.
    """
    start = _start(path)
    if not start.startswith(ZIP):
        kind = next((name for magic, name in OTHERS.items() if start.startswith(magic)), None)
        if kind is not None:
            raise InputError(
                f"{path} is {kind}, which is not read.",
                asked_by="--input",
                known=ACCEPTED,
                hint="numpy.save(path, array) writes .npy files; examples/12_image.py takes images",
            )
        return _read_npy(path)
    arrays = read_arrays(path)
    if name not in arrays and len(arrays) != 1:
        raise InputError(
            f"{path} has no array {name!r}.", asked_by="--input", known=", ".join(arrays)
        )
    return arrays[name] if name in arrays else next(iter(arrays.values()))


def _read_npy(path: str) -> Array:
    try:
        with open_regular(path) as file:
            if not file.read(1):
                raise ValueError("the file is empty")
            file.seek(0)
            return np.lib.format.read_array(file, allow_pickle=False)
    except Exception as error:  # numpy's header parser raises whatever tokenize and ast raise
        raise InputError(
            f"{path} is not an intact .npy file of numbers: {error}.",
            asked_by="--input",
            known=ACCEPTED,
            hint="numpy.save(path, array) writes one",
        ) from None


def sample_files(given: Iterable[str], option: str) -> Iterator[str]:
    """Yield the .npz files that an option named, or that lie in folders. Raises InputError."""
    for path in given:
        if not Path(path).is_dir():
            check_readable(path, "sample", option)
            yield path
            continue
        files = sorted(str(file) for file in Path(path).glob("*.npz"))
        if not files:
            raise InputError(f"There are no .npz files in {path}.", asked_by=option)
        yield from files


def read_samples(files: Iterable[str], option: str) -> Iterator[dict[str, Array]]:
    """Yield the arrays in each of the files of an option, read one by one."""
    return (read_arrays(file, option) for file in files)


def read_arrays(path: str, option: str = "--input") -> dict[str, Array]:
    """Return all arrays in a .npz file by name. Raises InputError."""
    check_readable(path, "input file", option)
    arrays: dict[str, Array] = {}
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            _check_growth(archive, os.fstat(file.fileno()).st_size)
            for member in archive.namelist():
                with archive.open(member) as file_in_archive:
                    array = np.lib.format.read_array(file_in_archive, allow_pickle=False)
                    if file_in_archive.read(1):
                        raise ValueError(f"{member} is longer than its array")
                arrays[member.removesuffix(".npy")] = array
    except Exception as error:  # as for .npy, and what zipfile and its decoders raise
        raise InputError(
            f"{path} is not an intact .npz file of numbers: {error}.",
            asked_by=option,
            hint="write it with numpy.savez(path, NAME=array)",
        ) from None
    return arrays


def _check_growth(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError for an archive that unpacking would make too large, or that is empty."""
    if not archive.infolist():
        raise ValueError("it holds no array")
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(MUCH, MAX_GROWTH * size):
        raise ValueError(f"its {size} bytes would become {unpacked}")


def npy(array: Array) -> bytes:
    """Return an array as a .npy file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asarray(array), allow_pickle=False)
    return buffer.getvalue()


def is_archive(target: str | Path) -> bool:
    """Tell whether outputs go to one .npz file, not to a folder."""
    return str(target).endswith(".npz") and not os.path.isdir(target)  # noqa: PTH112  (long names)


def write_outputs(results: Mapping[str, Array], target: Path) -> dict[str, str]:
    """Write each array to ``target/NAME.npy``, or all to ``target.npz``; return each one's file.

    Nothing is written before everything is ready, and each file in one step. Characters that file
    systems or shells treat specially become ``_``. Raises InputError where two names make the same
    file, or a file cannot be written.
    """
    if is_archive(target):
        save_named(target, _npz(results), "--output")
        return dict.fromkeys(results, str(target))
    safe = {name: re.sub(r"[^\w.-]|^\.", "_", name) for name in results}
    files = {name: target / f"{stem}.npy" for name, stem in safe.items()}
    if len(set(files.values())) < len(files):
        shared = ", ".join(map(str, files.values()))
        raise InputError(f"Two outputs would share a file: {shared}.")
    data = {name: npy(array) for name, array in results.items()}
    for name, path in files.items():
        save_named(path, data[name], "--output")
    return {name: str(path) for name, path in files.items()}


def _npz(results: Mapping[str, Array]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in results.items():
            archive.writestr(f"{name}.npy", npy(array))
    return buffer.getvalue()
