"""The command line where names, terminals and arguments are not as they should be."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gpuedge.cli.main import main
from gpuedge.cli.output import Output
from gpuedge.core.text import Table

HOSTILE = "ok\x1b[2Jgone\x07\x9b31m\u202etxt\rback"


def test_foreign_text_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Output().show({}, [HOSTILE, Table(HOSTILE, ("a", "b"), [(HOSTILE, HOSTILE)])])
    Output().log(HOSTILE)
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert "gone" in text
        assert all(c.isprintable() or c == "\n" for c in text)


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_tables_and_names_for_every_terminal(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2)]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    titled = Table("Title", ("a", "b"), [("x", "Grafikkarte \u2122 \u4e2d")])
    Output().show({}, [titled, "\u4e2d"])
    Output().log("\u4e2d")
    said = []
    for stream in streams:
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        said.append(stream.buffer.getvalue().decode(encoding))
    rule = "\u2500" if encoding == "utf-8" else "-"
    assert said[0].splitlines()[2].strip(rule) == ""
    shown = "\u4e2d" if encoding == "utf-8" else "\\u4e2d"
    assert said[0].splitlines()[-1] == said[1].strip() == shown


MODEL = str(Path(__file__).resolve().parents[2] / "examples" / "models" / "digits.onnx")
WORDS = {
    "nothing": "", "nul": "a\0b", "half a character": "\udcff", "escape": "\x1b[2J",
    "long": "x" * 5000, "digits": "9" * 400, "folder": "/", "endless": "/dev/zero", "bracket": "[",
}  # fmt: skip
FORMS = [
    ["{}"], ["cache", "{}"], ["info", "{}"], ["kernels", "{}"], ["kernels", "show", "{}"],
    ["kernels", "show", "map/pool", "--dialect", "{}"], ["probe", "--input", "{}"],
    ["probe", "--backend", "{}"], ["probe", "--deadline", "{}"], ["doctor", "--deadline", "{}"],
    ["run", "{}"], ["run", MODEL, "--input", "{}"], ["run", MODEL, "--input", "image={}"],
    ["run", MODEL, "--repeat", "{}"], ["run", MODEL, "--timeout", "{}"],
    ["conformance", "list", "--shard", "{}"], ["conformance", "list", "--only", "{}x"],
    ["conformance", "run", "--device", "{}"], ["conformance", "run", "--jobs", "{}"],
    ["conformance", "run", "--junit", "{}", "--jobs", "0"],
    ["conformance", "run", "--resume", "{}", "--device", "nope"],
    ["conformance", "run", "--case-timeout", "{}"],
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
def test_bad_words_are_told_in_four_parts_and_few_lines(
    form: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuedge.cli.devices.find", lambda *_: pytest.fail("probed"))
    for word in WORDS.values():
        code = main([part.format(word) for part in form])
        said = capsys.readouterr().err
        assert code == 2, word[:20]
        assert said.startswith("[GE-")
        assert len(said) < 6000
        assert all(c.isprintable() or c == "\n" for c in said)
