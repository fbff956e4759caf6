"""Specifications of benchmarks: FAI-PEP's, read as they are, and a shorter form of our own.

A file that a specification names is used only if it has the SHA-256 that stands there. Nothing is
ever written into a specification, and no command that one holds is run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from gpuedge.core.errors import InputError
from gpuedge.core.text import shown
from gpuedge.safety.packages import needed
from gpuedge.safety.paths import cache_dir, check_readable, open_regular, read_start, write_atomic

MAX_SPEC = 4 << 20
"""Bytes of a specification."""

MAX_FETCHED = 2 << 30
"""Bytes of a file that is fetched."""

FETCH_S = 60.0
"""Seconds without a byte after which fetching is given up."""

ITERATIONS, WARM_UP = 50, 1
"""Where a specification does not say: those of FAI-PEP's own."""

ONNX = "onnx"

Metric = Literal["delay", "error", "power"]
TIMED: tuple[Metric, ...] = ("delay", "error", "power")
"""Metrics of FAI-PEP that are measured here; all of ours are measured whichever was asked for."""

OUTPUT = re.compile(r"\{(TEMPDIR|TGTDIR)\}")
"""Begins the place of a file that a benchmark would write."""


@dataclass(frozen=True, slots=True)
class SpecFile:
    """A file that a specification names, and where it stands there (a JSON path)."""

    filename: str
    location: str | None
    sha256: str | None
    md5: str | None
    at: str


@dataclass(frozen=True, slots=True)
class SpecTest:
    """One test: shapes or files of inputs, golden outputs, and how often it runs.

    Attributes
    ----------
    skipped : str
        Why it cannot run here; empty if it can.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inputs: Mapping[str, SpecFile] = field(default_factory=dict)
    outputs: Mapping[str, SpecFile] = field(default_factory=dict)
    iterations: int = ITERATIONS
    warm_up: int = WARM_UP
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class BenchSpec:
    """A specification: one model and its tests."""

    path: Path
    name: str
    model: SpecFile | None
    tests: tuple[SpecTest, ...]


@dataclass(frozen=True, slots=True)
class SpecPlaces:
    """Where files are looked for.

    Attributes
    ----------
    root : Path, optional
        What a location that begins with ``//`` lies below.
    is_fetching : bool
        Whether a location that is a URL may be downloaded, into the cache folder.
    """

    root: Path | None = None
    is_fetching: bool = False


def read_spec(path: Path, strings: Mapping[str, str] | None = None) -> BenchSpec:
    """Read a specification; no file that it names is touched.

    Parameters
    ----------
    path : Path
    strings : mapping of str to str, optional
        FAI-PEP's string map: ``{NAME}`` becomes the value, anywhere in the specification.

    Raises
    ------
    InputError (GE-203)
        There is none, it is no JSON, or not such a specification; says where.
    MissingPackageError (GE-104)
        The package jsonschema, of the extra ``updates``.
    """
    body = _document(path)
    for name, value in (strings or {}).items():
        body = _replaced(body, f"{{{name}}}", value)
    is_fai_pep = not isinstance(body.get("model"), str)
    schema = "fai_pep" if is_fai_pep else "spec"
    with needed("jsonschema", f"reading {path.name}"):
        library = import_module("jsonschema")
    rules = json.loads((Path(__file__).parent / f"{schema}.schema.json").read_text("utf-8"))
    found = library.exceptions.best_match(library.Draft202012Validator(rules).iter_errors(body))
    if found is not None:
        raise InputError(
            f"{path} is not a specification of a benchmark.", known=f"{found.json_path}: "
            f"{found.message:.300}", hint="docs/benchmarking.md shows both forms",
        )  # fmt: skip
    return _fai_pep(path, body) if is_fai_pep else _own(path, body)


def _document(path: Path) -> dict[str, Any]:
    check_readable(path, "specification")
    try:
        data = read_start(path, MAX_SPEC + 1)
        if len(data) > MAX_SPEC:
            raise ValueError(f"it is larger than {MAX_SPEC >> 20} MiB")
        body = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON: {error}.") from None
    if not isinstance(body, dict):
        raise InputError(f"{path} holds JSON, but not an object.")
    return body


def _replaced(value: Any, token: str, by: str) -> Any:
    if isinstance(value, dict):
        return {k: _replaced(v, token, by) for k, v in value.items()}
    if isinstance(value, list):
        return [_replaced(v, token, by) for v in value]
    return value.replace(token, by) if isinstance(value, str) else value


def _own(path: Path, body: Mapping[str, Any]) -> BenchSpec:
    name = body.get("name", path.stem)
    model = SpecFile(body["model"], body["model"], body.get("sha256"), None, "$")
    tests = [_own_test(test, i) for i, test in enumerate(body.get("tests", [{}]))]
    return BenchSpec(path, name, model, tuple(tests))


def _own_test(test: Mapping[str, Any], at: int) -> SpecTest:
    inputs, outputs = (
        {
            name: SpecFile(f["file"], f["file"], f["sha256"], None, f"$.tests[{at}].{key}.{name}")
            for name, f in test.get(key, {}).items()
        }
        for key in ("inputs", "outputs")
    )
    shapes = {name: tuple(shape) for name, shape in test.get("shapes", {}).items()}
    return SpecTest(
        test.get("name", str(at)), shapes, inputs, outputs, test.get("iter", ITERATIONS),
        test.get("warmup", WARM_UP),
    )  # fmt: skip


def _fai_pep(path: Path, body: Mapping[str, Any]) -> BenchSpec:
    model = body["model"]
    files = _files(model.get("files", {}), "$.model.files")
    is_ours = model["format"].lower() == ONNX
    chosen = [f for f in files.values() if f.filename.lower().endswith(".onnx")]
    if is_ours and len(chosen) != 1:
        raise InputError(
            f"{path} must name one .onnx file.", known=f"$.model.files names {len(chosen)}"
        )
    why = "" if is_ours else f"its model has the format {shown(model['format'])}, which is not ONNX"
    tests = [one for i, t in enumerate(body["tests"]) for one in _fai_pep_tests(t, i, why)]
    return BenchSpec(path, model["name"], chosen[0] if is_ours else None, tuple(tests))


def _fai_pep_tests(test: Mapping[str, Any], at: int, why: str) -> Iterator[SpecTest]:
    """Yield a test for each set of shapes."""
    name, metric = test["identifier"].replace("{ID}", str(at)), test["metric"]
    if not why and metric not in TIMED:
        why = f"its metric is {shown(metric)}, which commands of the specification would compute"
    where = f"$.tests[{at}]"
    inputs = _files(test.get("input_files", {}), f"{where}.input_files")
    outputs = _files(test.get("output_files", {}), f"{where}.output_files")
    sets = list(_shapes(test, where))
    for shapes in sets:
        yield SpecTest(
            name if len(sets) == 1 else of_shapes(name, shapes), shapes, inputs, outputs,
            test.get("iter", ITERATIONS), test.get("warmup", WARM_UP), why,
        )  # fmt: skip


def of_shapes(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """Return what a case is called with these shapes: it has a history of its own."""
    return "-".join((name, *("x".join(map(str, shape)) for shape in shapes.values())))


def _shapes(test: Mapping[str, Any], where: str) -> Iterator[dict[str, tuple[int, ...]]]:
    """Yield sets of shapes: of ``inputs``, each with one or several, else of the arguments."""
    given = test.get("inputs")
    if given is None:
        yield _from_arguments(test)
        return
    lists = {}
    for name, about in given.items():
        shapes = about.get("shapes", about.get("shape", []))
        is_many = bool(shapes) and isinstance(shapes[0], list)
        lists[name] = [tuple(s) for s in (shapes if is_many else [shapes])]
    lengths = {len(shapes) for shapes in lists.values()}
    if len(lengths) > 1:
        raise InputError(
            "A specification gives inputs of one test different numbers of shapes.",
            known=f"{where}.inputs: {', '.join(f'{n} has {len(s)}' for n, s in lists.items())}",
        )
    for at in range(max(lengths, default=0)):
        yield {name: shapes[at] for name, shapes in lists.items()}


def _from_arguments(test: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that the command line of the specification's own program has."""
    commands = test.get("commands", ())
    words = " ".join([test.get("arguments", ""), *(c for c in commands if isinstance(c, str))])
    names, dims = (
        next(iter(re.findall(rf"--(?:{key})[= ]\\?[\"']?([^\"'\s\\]+)", words)), "")
        for key in ("input|input_layer", "input_dims|input_layer_shape")
    )
    shapes = [re.split("[,x]", text) for text in dims.split(";")]
    if not names or not all(re.fullmatch("[0-9]{1,99}", n) for shape in shapes for n in shape):
        return {}
    return {n: tuple(map(int, s)) for n, s in zip(re.split("[,;]", names), shapes, strict=False)}


def _files(group: Mapping[str, Any], at: str) -> dict[str, SpecFile]:
    """Return files by name: the first where there are several, none that would be written."""
    found = {}
    for name, given in group.items():
        is_many = isinstance(given, list)
        first = given[0] if is_many and given else given
        if first and not OUTPUT.match(first.get("location", "")):
            found[name] = SpecFile(
                first["filename"], first.get("location"), first.get("sha256"), first.get("md5"),
                f"{at}.{name}{'[0]' if is_many else ''}",
            )  # fmt: skip
    return found


def locate(file: SpecFile, spec: Path, places: SpecPlaces) -> Path:
    """Return a file whose SHA-256 is right.

    It lies beside the specification, where its location says, or was fetched.

    Raises
    ------
    InputError (GE-203)
        It is missing, the specification has no SHA-256 of it, or another one.
    """
    path = _at_hand(file, spec, places)
    if path is None:
        location = file.location or ""
        if file.sha256 is None:
            raise _unhashed(file, spec, None, places)
        if not places.is_fetching or not location.startswith(("https://", "http://")):
            is_url = location.startswith(("https://", "http://"))
            hint = (
                f"--fetch, or put it beside {spec.name}" if is_url else f"{location or spec.parent}"
            )
            raise InputError(
                f"There is no file {file.filename}.", asked_by=f"{spec}: {file.at}",
                known=f"looked beside {spec.name} and in the cache", hint=hint,
            )  # fmt: skip
        path = _fetched(file, location, spec)
    if file.sha256 is None:
        raise _unhashed(file, spec, path, places)
    found = sha256_of(path)
    if found != file.sha256:
        raise InputError(
            f"{path} is not the file that the specification means.", asked_by=f"{spec}: {file.at}",
            known=f"its SHA-256 is {found}, not {file.sha256}",
            hint="get the right file; the specification is never changed to fit another one",
        )  # fmt: skip
    return path


def _at_hand(file: SpecFile, spec: Path, places: SpecPlaces) -> Path | None:
    location = file.location or file.filename
    candidates = [spec.parent / file.filename]
    if location.startswith("//"):
        if places.root is None:
            raise InputError(
                f"{spec.name} names a file below a root folder.", asked_by=f"{spec}: {file.at}",
                known=f"its location is {location}", hint="--root FOLDER",
            )  # fmt: skip
        candidates = [places.root / location[2:]]
    elif "://" not in location:
        candidates.insert(0, spec.parent / location)
    if file.sha256 is not None:
        candidates.append(_cached(file.sha256))
    return next((path for path in candidates if path.is_file()), None)


def _cached(sha256: str) -> Path:
    return cache_dir() / "bench" / sha256


def _unhashed(file: SpecFile, spec: Path, path: Path | None, places: SpecPlaces) -> InputError:
    """Return the error for a file without a SHA-256, with the line to add if it is at hand."""
    known = "it gives the MD5, which does not protect" if file.md5 else "it gives no checksum"
    if path is None:
        hint = f'get {file.filename}, check it, and add "sha256": what sha256sum prints'
    elif file.md5 and _md5_of(path) != file.md5:
        known, hint = f"the MD5 of {path} is another one, too", "get the right file first"
    else:
        hint = f'if you trust {path}, add  "sha256": "{sha256_of(path)}"'
    return InputError(
        f"{spec.name} gives no SHA-256 of {file.filename}.", asked_by=f"{spec}: {file.at}",
        known=known, hint=hint,
    )  # fmt: skip


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file. Raises InputError (GE-203) where it cannot be read."""
    return _digest(path, hashlib.sha256())


def _md5_of(path: Path) -> str:
    return _digest(path, hashlib.md5(usedforsecurity=False))


def _digest(path: Path, kind: Any) -> str:
    try:
        with open_regular(path) as file:
            while part := file.read(1 << 20):
                kind.update(part)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from None
    return str(kind.hexdigest())


def _fetched(file: SpecFile, url: str, spec: Path) -> Path:
    """Download a file whose hash is known; what is another file is not kept."""
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=FETCH_S) as answer:
            data = answer.read(MAX_FETCHED + 1)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{url} cannot be fetched: {error}.", asked_by=f"{spec}: {file.at}",
            hint=f"put {file.filename} beside {spec.name}",
        ) from None  # fmt: skip
    found = hashlib.sha256(data).hexdigest()
    if found != file.sha256:
        raise InputError(
            f"What {url} holds is not the file that the specification means.",
            asked_by=f"{spec}: {file.at}", known=f"its SHA-256 is {found}, not {file.sha256}",
            hint="get the right file from elsewhere",
        )  # fmt: skip
    path = _cached(file.sha256)
    if not write_atomic(path, data):
        raise InputError(f"{file.filename} cannot be kept in {path.parent}.", asked_by="--fetch")
    return path


def chosen(tests: Sequence[SpecTest], only: str) -> list[SpecTest]:
    """Return the tests of a name, all for an empty one. Raises InputError (GE-203)."""
    found = [t for t in tests if not only or t.name == only]
    if not found:
        names = ", ".join(t.name for t in tests)
        raise InputError(f"There is no test {shown(only)}.", known=f"there are {names}")
    return found
