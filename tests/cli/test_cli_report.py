"""``gpuedge report``, and the page that it shares with conformance: one file, and whole."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gpuedge.cli import main as cli
from gpuedge.cli.page import page
from gpuedge.conformance import runner
from gpuedge.conformance.catalogue import everything
from gpuedge.conformance.results import ResultSet, only, read
from gpuedge.core.errors import MissingPackageError, NoUsableDeviceError
from gpuedge.probing.report import ProbeReport

TESTS = Path(__file__).parents[1]
CHILD = next(TESTS.rglob("conformance_child.py"))
sys.path.insert(0, str(TESTS / "conformance"))

from test_conformance_results import of, row  # noqa: E402

FEW = everything("smoke")[:6]
IDENTITY = {"api": "gles20", "name": "Fake & Sons GPU", "os": "linux"}


class Page(HTMLParser):
    """A page's tags, which must be closed, what it refers to, and its text."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(data.decode())
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def pictures(self) -> list[str]:
        return [str(attrs["src"]) for tag, attrs in self.tags if tag == "img"]


def test_a_page_is_whole_and_needs_nothing_else() -> None:
    bad = row("mul/1", "failed", reason="<b>1</b> of 2 & more", map=["0159", "0000"], worst=7.0,
              kernels=["mul_map"], again="failed")  # fmt: skip
    known = {"kind": "quarantine", "reason": "odd"}
    part = of(
        row("add/1", worst=0.5), bad, row("mul/2", "flake", reason="fails after add/1"),
        row("div/1", "skipped", reason="large"), row("div/2", "failed", expectation=known),
        identity=IDENTITY, labels={"room": "7"},
        database={"version": 7, "digest": "ab" * 32,
                  "entries": [{"id": "any-1", "becomes": "applies", "summary": "It is small."}]},
    )  # fmt: skip
    made = Page(page(ResultSet([part, of(row("add/1"), device="fake:1")]), {"fake:1": 3}, ["hm"]))
    for words in ("Fake & Sons GPU", "<b>1</b> of 2 & more", "fails after add/1", "large", "any-1",
                  "It is small.", "in quarantine, failed: odd", "labels.room", "versions.gpuedge",
                  "worst error 7 of the bound", "incomplete", "hm", "mul_map"):  # fmt: skip
        assert words in made.text, words
    links = [attrs[name] for _, attrs in made.tags for name in ("src", "href") if name in attrs]
    outside = [link for link in links if not str(link).startswith(("data:", "#"))]
    assert outside == [] and not {"script", "link", "iframe"} & {tag for tag, _ in made.tags}
    (picture,) = made.pictures
    data = io.BytesIO(base64.b64decode(picture.partition("base64,")[2]))
    pixels = np.asarray(Image.open(data))
    assert pixels.tolist() == [[0, 1, 5, 9], [0, 0, 0, 0]]


def test_a_page_of_a_device_that_gets_everything_wrong_stays_small() -> None:
    rows = [row(f"add/{i}", "failed", reason="no", map=["9" * 64] * 64) for i in range(1500)]
    data = page(ResultSet([of(*rows)]))
    assert len(data) < 1 << 20 and "1200 more are in the file of results" in Page(data).text


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a fake device, and a probe that finds nothing else."""
    fates = json.dumps({FEW[1].id: "failed"})
    monkeypatch.setattr(runner, "COMMAND", (sys.executable, str(CHILD), fates))
    monkeypatch.setattr("gpuedge.cli.report.everything", lambda _: FEW)
    found = [("fake:0", IDENTITY)]
    monkeypatch.setattr("gpuedge.cli.running.devices", lambda *_: found)
    tried = {
        "device": "fake:0",
        "backend": "gles20",
        "index": 0,
        "name": IDENTITY["name"],
        "key": "",
        "status": "ok",
        "code": "ok",
        "reason": "right",
        "identity": IDENTITY,
    }
    report = ProbeReport.from_dict({"schema": "gpuedge.probe/1", "version": "1", "tried": [tried]})
    monkeypatch.setattr("gpuedge.probing.api.probe", lambda **_: report)
    monkeypatch.setattr("platform.node", lambda: "kitchen")


def packed(file: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.mark.usefixtures("machine")
def test_a_report_holds_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "r.zip"
    assert cli.main(["report", "-o", str(file), "--label", "ticket=12"]) == 0
    assert "5 of 6 cases passed" in capsys.readouterr().out
    found = packed(file)
    assert set(found) == {"report.html", "report.json", "conformance.jsonl"}
    body = json.loads(found["report.json"])
    assert body["schema"] == "gpuedge.report/1" and body["labels"] == {"ticket": "12"}
    assert body["doctor"]["schema"] == "gpuedge.doctor/1"
    assert body["probe"]["tried"][0]["device"] == "fake:0"
    assert body["info"]["packages"]["numpy"] and body["info"]["database"]["version"]
    assert body["conformance"]["counts"]["failed"] == 1
    lines = tmp_path / "conformance.jsonl"
    lines.write_bytes(found["conformance.jsonl"])
    results = only(str(lines))
    assert len(results.rows) == 6 and results.header["host"] == "kitchen"
    made = Page(found["report.html"])
    for words in ("gpuedge doctor", "Probe", "What did not pass", FEW[1].id, IDENTITY["name"]):
        assert words in made.text, words


@pytest.mark.usefixtures("machine")
def test_a_redacted_report_names_nobody(tmp_path: Path) -> None:
    file = tmp_path / "r.zip"
    options = ["--redact", "--label", "owner=Annabel", "--json"]
    assert cli.main(["report", "-o", str(file), *options]) == 0
    for name, data in packed(file).items():
        text = data.decode()
        for secret in ("kitchen", "Annabel", "Fake & Sons", "Fake &amp; Sons", str(Path.home())):
            assert secret not in text, (name, secret)
        assert "redacted-" in text


@pytest.mark.usefixtures("machine")
def test_a_report_without_a_device_or_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise NoUsableDeviceError("No usable GPU was found.")

    def missing(*_: Any) -> None:
        raise MissingPackageError("The package is not there.", hint="install it")

    monkeypatch.setattr("gpuedge.cli.running.devices", refuse)
    monkeypatch.setattr("gpuedge.conformance.templates.load_jinja", missing)
    file = tmp_path / "r.zip"
    assert cli.main(["report", "-o", str(file)]) == 0
    body = json.loads(packed(file)["report.json"])
    assert set(packed(file)) == {"report.json"} and body["conformance"] is None
    assert "no conformance cases were run: No usable GPU was found." in body["notes"]
    assert "there is no report.html: The package is not there. install it" in body["notes"]
    assert cli.main(["report", "-o", str(file), "--device", "vulkan"]) == 3
    assert cli.main(["report", "-o", str(file), "--skip-conformance", "--json"]) == 0
    assert cli.main(["report", "-o", "/"]) == 2


@pytest.mark.usefixtures("machine")
def test_an_interrupted_report_holds_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(self: runner.Runner) -> Any:
        yield {**FEW[0].described(), "status": "passed", "seconds": 0.1}
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Runner, "rows", rows)
    file = tmp_path / "r.zip"
    assert cli.main(["report", "-o", str(file)]) == 130
    (tmp_path / "r.jsonl").write_bytes(packed(file)["conformance.jsonl"])
    assert set(read(str(tmp_path / "r.jsonl")).parts[0].rows) == {FEW[0].id}
    assert json.loads(packed(file)["report.json"])["conformance"]["counts"]["not_run"] == 5
