"""What a handler raises while a package is imported leaves the package whole."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from gpuedge.cli import main as cli

SIGNAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)

class Interrupt:
    at = {at!r}
    def find_spec(self, name, *_):
        if name == self.at:
            self.at = None
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
"""
"""Has Ctrl-C come while one module, in the middle of a package, is looked for."""

TWICE = """
def work():
    import gpuedge
    with gpuedge.Session({model!r}, device="cpu") as session:
        import numpy
        (y,) = session.run([numpy.array([-1, 2, -3], "f4")]).values()
        return y.tolist()

try:
    print(work())
except KeyboardInterrupt:
    print("interrupted", {at!r}.partition(".")[0] in sys.modules)
print(work())
"""

MIDDLES = (
    "numpy.linalg", "onnx.external_data_helper", "onnx.numpy_helper", "onnxruntime.capi._ld_preload"
)  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "relu",
        [value("x", TensorProto.FLOAT, [3])], [value("y", TensorProto.FLOAT, [3])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, tmp_path / "relu.onnx")
    return str(tmp_path / "relu.onnx")


def child(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("at", MIDDLES)
def test_a_session_opens_after_an_interrupted_import(at: str, model: str) -> None:
    done = child(SIGNAL.format(at=at) + TWICE.format(at=at, model=model))
    assert done.stdout.split("\n") == ["interrupted True", "[0.0, 2.0, 0.0]", ""], done.stderr


@pytest.mark.parametrize("at", MIDDLES[:2])
def test_the_command_is_interrupted_and_not_broken(at: str, model: str) -> None:
    package = at.partition(".")[0]
    call = f"""
from gpuedge.cli.main import main
code = main(["check", {model!r}])
print(code, {package!r} in sys.modules)
"""
    done = child(SIGNAL.format(at=at) + call)
    assert (done.stdout, done.stderr) == ("130 True\n", "")


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_what_a_package_makes_of_ctrl_c_is_ctrl_c(
    link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages turn what comes out of their compiled part into an ImportError."""
    error = ImportError("initialization failed")
    setattr(error, link, KeyboardInterrupt())

    def load(verb: str) -> None:
        raise error

    monkeypatch.setattr(cli, "_module", load)
    assert cli.main(["cache"]) == cli.INTERRUPTED
    setattr(error, link, None)
    with pytest.raises(ImportError, match="initialization"):
        cli.main(["cache"])
