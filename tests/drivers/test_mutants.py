"""Mutants of kernels: the rules make enough of them, and a sample is killed by the cases."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import kernel_mutants as tool
import pytest
from farm import environment_of, require

from gpuedge.plan.library import texts

ROOT = Path(__file__).resolve().parents[2]
EVERY = [m for name, text in texts().items() for m in tool.mutants_of(name, text)]


def test_rules_make_mutants_of_every_kernel_and_kind() -> None:
    assert len({m.id for m in EVERY}) >= 1500
    assert {m.kernel for m in EVERY} == set(texts()) - {"map/elementwise", "map/trim"}
    assert {m.kind for m in EVERY} == {kind for kind, _, _ in tool.RULES}
    for mutant in EVERY[::50]:
        changed = [
            (old, new)
            for old, new in zip(mutant.text.splitlines(), mutant.wrong.splitlines(), strict=True)
            if old != new
        ]
        assert len(changed) == 1 and mutant.changed == changed[0][1]


def test_the_choice_does_not_depend_on_the_order() -> None:
    first = [m.id for m in tool.chosen(EVERY, 60)]
    assert [m.id for m in tool.chosen(EVERY[::-1], 60)] == first
    assert len({m.kernel for m in tool.chosen(EVERY, 60)}) > 15


def test_what_is_equivalent_says_why() -> None:
    assert all(len(why.split()) > 3 for why in tool.EQUIVALENT.values())


def test_survivors_and_too_few_are_no_success(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(tool, "OUT", tmp_path)
    monkeypatch.setattr(tool, "PAGE", tmp_path / "page.md")
    row = {"said": "a kernel: a line", "kind": "stride", "kernel": "map/conv2d"}
    assert tool.main([]) == 1
    rows = [{**row, "id": "a", "fate": "killed"}]
    (tmp_path / "results-0.jsonl").write_text(json.dumps(rows[0]) + "\n" + '{"id": "half')
    assert tool.main([]) == 0
    rows.append({**row, "id": "b", "fate": "survived"})
    (tmp_path / "results-0.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert tool.main([]) == 1 and "**survived**" in (tmp_path / "page.md").read_text()
    monkeypatch.setitem(tool.EQUIVALENT, "b", "it computes the same")
    assert tool.main([]) == 0 and "it computes the same" in (tmp_path / "page.md").read_text()


SAMPLE = """
import sys
sys.path[:0] = sys.argv[1:3]
import kernel_mutants as tool
from gpuedge.conformance.catalogue import listed
names = ("max_pool2d/float32/n1c5h7w9", "conv2d/float32/n1c3h6w7")
ground = tool.Ground([c for c in listed() if c.id.startswith(names)][:4])
every = [m for m in ground.every() if m.kind in ("padding", "wrong component", "accumulate")]
chosen = [m for m in tool.chosen(every, 9) if not ground.is_none(m)]
fates = [ground.judge(m)["fate"] for m in chosen]
again = {ground.bench.run(case)["status"] for _, case in sum(ground.cases.values(), [])}
print(len(fates), fates.count("killed"), sorted(again))
"""


@pytest.mark.driver
@pytest.mark.timeout(300)
def test_a_sample_is_killed_and_leaves_nothing_behind() -> None:
    require(tool.CONFIGURATION)
    paths = [str(ROOT / "tools"), str(ROOT / "tests" / "drivers")]
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE, *paths], env=environment_of(tool.CONFIGURATION),
        capture_output=True, text=True, check=True, timeout=280,
    )  # fmt: skip
    count, killed, statuses = done.stdout.split(maxsplit=2)
    assert int(count) >= 5 and int(killed) >= int(count) / 2, done.stdout
    assert statuses.strip() == "['passed']"
