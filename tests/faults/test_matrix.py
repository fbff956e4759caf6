"""Part of the fault matrix: an application meets faulty drivers and must not notice.

`tools/fault_matrix.py` runs all cells, and this takes some of them, other ones than the kit's own
tests: the probe's verdict is right, the fault was really carried out, the CPU's answers are the
same to the last bit, and nothing is left behind.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import daily
import kit
import matrix_plan
import matrix_table
import pytest
from matrix_worker import Worker
from required import absent

CHOSEN = (
    "probe wgpu ill@submit",
    "probe gles31 exit0@compile",
    "probe vulkan code-999@read",
    "probe vulkan torn-output@read:1+",
    "probe vulkan hang@create",
    "process vulkan segv@submit:4",
    "process wgpu exit0@read:4",
    "process vulkan hang@read:4",
    "inline vulkan lost@submit:4",
    "inline vulkan wrong@compile:1+",
)
"""Cells of `matrix_plan.plan`: every way to run, and every kind of end."""

MORE = (
    "probe vulkan segv@allocate",
    "probe wgpu abort@instance",
    "probe vulkan bus@load",
    "probe vulkan fpe@read",
    "probe wgpu stackoverflow@create",
    "probe vulkan exit3@load",
    "probe wgpu quit0@compile",
    "probe vulkan oom-host@instance:1+",
    "probe wgpu oom-device@create",
    "probe vulkan init-failed@submit",
    "probe wgpu bad-manifest@load",
    "probe wgpu unstable@read:1+",
    "probe vulkan nan@read:1+",
    "probe vulkan memory-huge@enumerate:1+",
)
"""Cells of the long campaign."""

WORKERS = 2
TOOLS = Path(__file__).resolve().parents[2] / "tools"


def ran(chosen: Sequence[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return what came of every chosen cell, each with its own seed."""
    try:
        kit.build()
    except kit.BuildError as error:
        absent(str(error))
    (folder / "verdicts").mkdir()
    planned = {cell.name: cell for cell in matrix_plan.plan()}
    trials = [planned[name].trial(1 + at % 5) for at, name in enumerate(chosen)]
    found: dict[str, dict[str, Any]] = {}

    def work(number: int) -> None:
        worker = Worker(folder / f"worker{number}")
        for trial in trials[number::WORKERS]:
            found[trial["name"]] = worker.run(trial)
        found[chosen[number]]["wrong"] += worker.stop()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.driver
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "chosen",
    [*daily.some([(CHOSEN[::2],), (CHOSEN[1::2],)]), pytest.param(MORE, marks=pytest.mark.long)],
)
def test_the_application_does_not_notice(chosen: Sequence[str], tmp_path: Path) -> None:
    wrong = {name: one for name, one in ran(chosen, tmp_path).items() if one["wrong"]}
    assert wrong == {}


def test_the_matrix_is_large_and_its_cells_differ() -> None:
    names = [cell.name for cell in matrix_plan.plan()]
    assert len(set(names)) == len(names) >= 300
    for part in ("probe", "process", "inline"):
        for api in kit.APIS:
            assert any(name.startswith(f"{part} {api} ") for name in names), (part, api)


class Ending(Worker):
    """An application that ends, or falls silent, instead of answering."""

    def __init__(self, folder: Path, code: str) -> None:
        super().__init__(folder)
        self.code = code

    @property
    def program(self) -> list[str]:
        return ["-c", "import os, sys, time; os.write(int(sys.argv[1]), b'{\"ready\": 1}\\n');"
                "sys.stdin.readline();" + self.code]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "word"), [("os.abort()", "died"), ("os._exit(0)", "died"), ("time.sleep(60)", "hung")]
)
def test_an_application_that_fails_is_seen(code: str, word: str, tmp_path: Path) -> None:
    worker = Ending(tmp_path, code)
    worker.margin_s = 5.0 if word == "died" else 0.5
    found = worker.run({"deadline_s": 0.5 if word == "hung" else 5.0})
    assert found["found"] == [word]
    assert found["wrong"]


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Path]:
    """A page with marks."""
    path = tmp_path / "faults.md"
    path.write_text(f"before\n{matrix_table.BEGIN}\nold\n{matrix_table.END}\nafter\n")
    yield path


def result(name: str, seed: int, code: str, *wrong: str) -> dict[str, Any]:
    return {"name": name, "seed": seed, "found": [code], "wrong": list(wrong)}


def test_the_table_shows_codes_runs_and_what_is_wrong(
    page: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["probe vulkan segv@load", "probe wgpu segv@load", "process vulkan segv@submit:4"]
    known = [
        *(result(names[0], seed, "crashed/crashed") for seed in (1, 2)),
        result(names[1], 1, "ok/ok", "the fault was not carried out"),
        result(names[2], 1, "worker-died"),
        result("probe vulkan no@longer", 1, "ok/ok"),
    ]
    assert matrix_table.write(page, known) == 1
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "3 cells, 4 runs, at least 1 of each; 1 runs were not right." in text
    assert "| `segv@load` | crashed 2 | **ok 1, 1 wrong** |" in text
    assert "| `segv@submit:4` | worker-died 1 |" in text
    assert "no@longer" not in text
    assert "no result: probe vulkan abort@load" in capsys.readouterr().err


def test_only_whole_lines_are_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import fault_matrix

    path = tmp_path / "results.jsonl"
    assert fault_matrix.read_results(path) == []
    line = json.dumps(result("probe vulkan segv@load", 1, "crashed/crashed"))
    path.write_text(f"{line}\n{line[:20]}")
    assert fault_matrix.read_results(path) == [json.loads(line)]


def test_a_choice_of_no_cell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import fault_matrix

    with pytest.raises(SystemExit, match="--only probe nonsense"):
        fault_matrix.main(["--only", "probe", "nonsense", "--list"])
