"""What is said of Pythons, extras and optional packages: the same everywhere."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import install_table
import pytest
from packaging.requirements import Requirement

from gpuedge.core.errors import ConfigError, MissingPackageError, UpdateError
from gpuedge.safety import packages
from gpuedge.safety.packages import needed

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
OPTIONAL = PROJECT["optional-dependencies"]
PLACES = {
    "cli/output.py": "prints plainly without rich",
    "backends/wgpu/api.py": "imports wgpu in a function of its own",
    "capdb/updates/client.py": "is imported once everything was found",
    "farm/engine.py": "imports more of distributed in functions, once it was found",
    "farm/work.py": "runs on workers of Dask only",
    "onnx_backend.py": "imports more of onnx in functions, once it was found",
}
"""Files that import an optional package otherwise, and why they may."""


def names(lines: list[str]) -> set[str]:
    return {Requirement(line).name for line in lines} - {"gpuedge"}


def test_extras_bring_the_packages_that_errors_name_them_for() -> None:
    known = {extra: set() for extra in packages.EXTRAS.values()}
    for package, extra in packages.EXTRAS.items():
        known[extra].add(package)
    module = {"pyshaderc": {"pyshaderc"}}
    declared = {e: names(OPTIONAL[e]) for e in OPTIONAL if e not in ("all", "examples", "gles")}
    assert {e: module.get(e, n) for e, n in declared.items()} == known


def test_all_is_all() -> None:
    (itself,) = (r for r in map(Requirement, OPTIONAL["all"]) if r.name == "gpuedge")
    others = names(OPTIONAL["all"])
    assert itself.extras | others == set(OPTIONAL) - {"all", "examples", "farm", "shaderc"}


def test_pythons_are_the_same_everywhere() -> None:
    oldest, newest = install_table.PYTHONS[0], install_table.PYTHONS[-1]
    minors = [int(v.partition(".")[2]) for v in install_table.PYTHONS]
    assert minors == list(range(minors[0], minors[-1] + 1))
    assert PROJECT["requires-python"] == f">={oldest}"
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert tools["ruff"]["target-version"] == f"py{oldest.replace('.', '')}"
    assert tools["mypy"]["python_version"] == oldest
    for page in ("README.md", "docs/install.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert f"Python {oldest} to {newest}" in text
    script = (ROOT / "tools" / "setup.sh").read_text(encoding="utf-8")
    assert f"sys.version_info < {oldest.replace('.', ', ').join('()')}" in script
    assert f"older than Python {oldest};" in script


def test_every_python_and_extra_was_tried() -> None:
    wheels, runs = install_table.known(install_table.PAGE.read_text(encoding="utf-8"))
    assert [row[0] for row in wheels] == list(install_table.PLATFORMS)
    assert {len(row) for row in wheels} == {len(install_table.EXTRAS) + 1}
    tried = {(row[0].rpartition(".")[0], row[2]): row for row in runs if row[1] == "Linux x86_64"}
    pythons = install_table.PYTHONS
    assert {(v, e) for v in pythons for e in ("gpuedge", "models", "all")} <= set(tried)
    assert {e for _, e in tried} == {e or "gpuedge" for e in install_table.EXTRAS}
    for (_, extra), row in tried.items():
        assert row[5].startswith("cpu, vulkan:0, gles31:0"), row
        assert ("model" in row[5].split(", ")) == (extra in ("models", "all")), row
    emulated = {row[2]: row[5].split(", ") for row in runs if row[1] == "Linux aarch64"}
    assert set(emulated) == {"gpuedge", "models", "all"}
    levels = {"cpu", "vulkan:0", "gles31:0", "gles30:0", "gles20:0"}
    assert levels <= set(emulated["gpuedge"]) and {*levels, "model"} <= set(emulated["models"])
    assert {*levels, "model", "wgpu:0"} <= set(emulated["all"])
    takes = tried[("3.11", "gpuedge")], tried[("3.11", "all")]
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    said = " ".join(page.split())
    for row in takes:
        assert f"{row[3]} packages and {row[4]} MiB" in said


def test_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert [e for e in OPTIONAL if f"| `{e}`" not in page and f", `{e}` |" not in page] == []


def test_page_of_wheels_is_read_as_it_was_written() -> None:
    text = install_table.PAGE.read_text(encoding="utf-8")
    assert install_table.page(install_table.known(text)) == text


@pytest.mark.parametrize(
    ("versions", "words"),
    [((), "no"), (("3.11",), "3.11"), (("3.11", "3.12", "3.13"), "3.11\u20133.13"),
     (("3.11", "3.13"), "3.11, 3.13")],
)  # fmt: skip
def test_pythons_in_few_words(versions: tuple[str, ...], words: str) -> None:
    assert install_table.spread(versions) == words


def test_missing_package_is_an_error_with_the_command() -> None:
    with pytest.raises(MissingPackageError) as caught, needed("onnx", "the test"):
        raise ImportError("No module named 'onnx'")
    error = caught.value
    assert isinstance(error, ConfigError) and isinstance(error, ImportError)
    assert (error.code, error.asked_by) == ("GE-104", "the test")
    assert (error.known, error.hint) == ("No module named 'onnx'", "pip install 'gpuedge[models]'")
    assert "pip install" in str(error) and "[GE-104]" in str(error)
    with pytest.raises(UpdateError), needed("tuf", "the test", UpdateError):
        raise ImportError("no tuf")


@pytest.mark.parametrize(
    ("error", "known", "hint"),
    [
        (ImportError("x.so: failed to map segment from shared object"), "map segment", "memory"),
        (MemoryError(), "", "memory"),
        (UnicodeEncodeError("ascii", "é", 0, 1, "no"), "this locale cannot write", "PYTHONUTF8=1"),
    ],
)
def test_package_that_is_there_and_cannot_be_imported(
    error: Exception, known: str, hint: str
) -> None:
    with pytest.raises(MissingPackageError) as caught, needed("onnx", "the test"):
        raise error
    assert known in (caught.value.known or "")
    assert hint in (caught.value.hint or "")
    assert "pip" not in str(caught.value)


def test_ctrl_c_in_an_import_is_no_missing_package() -> None:
    broken = ImportError("initialization failed")
    broken.__cause__ = KeyboardInterrupt()
    with pytest.raises(ImportError) as caught, needed("onnx", "the test"):
        raise broken
    assert caught.value is broken


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys({modules!r}))
import gpuedge
try:
    {call}
except {caught} as error:
    print(error.code, error.hint)
"""


@pytest.mark.parametrize(
    ("module", "call", "caught", "said"),
    [
        ("onnx", "gpuedge.Session({model!r}, device='cpu')", "gpuedge.MissingPackageError",
         "GE-104 pip install 'gpuedge[models]'"),
        ("onnx", "gpuedge.check({model!r})", "gpuedge.GpuEdgeError",
         "GE-104 pip install 'gpuedge[models]'"),
        ("onnx", "gpuedge.for_frames({model!r}, (8, 8))", "gpuedge.GpuEdgeError",
         "GE-104 pip install 'gpuedge[models]'"),
        ("onnx", "import gpuedge.onnx_backend", "ImportError",
         "GE-104 pip install 'gpuedge[models]'"),
        ("onnxruntime", "gpuedge.quantize({model!r}, [])", "gpuedge.GpuEdgeError",
         "GE-104 pip install 'gpuedge[models]'"),
        ("wgpu.backends.wgpu_native", "from gpuedge.backends.wgpu import api; "
         "api.native_files = list; api.load()", "gpuedge.BackendUnavailableError",
         "GE-404 pip install 'gpuedge[wgpu]'"),
        ("vulkan", "from gpuedge.backends.vulkan import api; api.load()",
         "gpuedge.BackendUnavailableError", "GE-404 pip install 'gpuedge[vulkan]'"),
        ("tuf.ngclient", "from gpuedge.capdb.updates import update; update.update('mirror')",
         "gpuedge.GpuEdgeError", "GE-601 pip install 'gpuedge[updates]'"),
        ("pyshaderc", "from gpuedge.lang import glsl; glsl._with_pyshaderc('', 'k.comp')",
         "gpuedge.CompilerUnavailableError", "GE-302 pip install 'gpuedge[shaderc]'"),
    ],
)  # fmt: skip
def test_what_needs_a_missing_package_says_so(
    module: str, call: str, caught: str, said: str
) -> None:
    model = str(ROOT / "examples" / "models" / "digits.onnx")
    code = WITHOUT.format(modules=[module], call=call.format(model=model), caught=caught)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert (done.stdout.strip(), done.returncode) == (said, 0), done.stderr


def imports(tree: ast.AST, inside: frozenset[str] = frozenset()) -> Iterator[str]:
    """Imports of optional packages outside a block that tells of them, and outside types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        found = inside
        if isinstance(node, ast.With):
            calls = [i.context_expr for i in node.items if isinstance(i.context_expr, ast.Call)]
            found |= {ast.literal_eval(c.args[0]) for c in calls if ast.unparse(c.func) == "needed"
                      and isinstance(c.args[0], ast.Constant)}  # fmt: skip
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        modules += [a.name for a in node.names] if isinstance(node, ast.Import) else []
        tops = {m.partition(".")[0] for m in modules}
        yield from (tops & set(packages.EXTRAS)) - found
        yield from imports(node, found)


def test_optional_packages_are_imported_where_they_may_be_missing() -> None:
    folder = ROOT / "gpuedge"
    bare = {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*.py")
        if list(imports(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert bare == set(PLACES)


def test_bare_import_is_seen() -> None:
    assert list(imports(ast.parse("def f():\n    import onnx.helper\n"))) == ["onnx"]
    good = "with needed('onnx', 'x'):\n    from onnx import helper\n"
    assert list(imports(ast.parse(good))) == []
    assert list(imports(ast.parse(good.replace("from onnx", "from wgpu")))) == ["wgpu"]
