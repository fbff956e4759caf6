"""Tables, pages and proposals from the stores of runs whose rows are made up."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from capdb.lint import lint
from capdb.seal import seal
from daily import some
from farm_fakes import CASES, begun, row

from gpuedge.capdb.check import check_folder, check_schemas
from gpuedge.capdb.entries import parse
from gpuedge.capdb.identity.subject import subject
from gpuedge.capdb.matching import FALSE, TRUE, result
from gpuedge.conformance.results import Results
from gpuedge.core.errors import InputError
from gpuedge.farm import page, proposals, report, table
from gpuedge.farm.devices import FarmDevice
from gpuedge.farm.tasks import FarmTask, shards
from gpuedge.plan.library import variants

ROOT = Path(__file__).resolve().parents[2]
ALL = sorted(CASES)
EVIL = "<script>alert(1)</script>"


def device(version: str = "22.3.6", level: str = "gles31") -> FarmDevice:
    """Return llvmpipe of a version of Mesa: an identity that the database knows how to read."""
    gl = f"OpenGL ES {level[4]}.{level[5]} Mesa {version}"
    name = "llvmpipe (LLVM 15.0.6, 256 bits)"
    told = {"GL_VENDOR": "Mesa", "GL_RENDERER": name, "GL_VERSION": gl, "api": level, "os": "linux"}
    return FarmDevice(f"{level}:0", {**told, "name": name})


def store(
    folder: Path, one: FarmDevice, bad: dict[str, str], *, when: str = "2026-01-01",
    check: dict[str, str] | None = None, leave: int = 0, **more: Any,
) -> str:  # fmt: skip
    """Write the store of a finished run in which these cases came to these statuses."""
    made, run = begun(folder)
    body = json.loads((folder / "run.json").read_text()) | {"id": folder.name, **more}
    (folder / "run.json").write_text(json.dumps(body | {"started": f"{when}T00:00:00Z"}))
    made.put(f"devices/{one.key}.json", json.dumps({"key": one.key, **one.as_dict()}))
    for task in shards(one.key, ALL, run.parts)[leave:]:
        for odd, checked in ((bad, False), (check, True)):
            if odd is not None:
                write(made, task, one, odd, checked)
    return str(folder)


def write(made: Any, task: FarmTask, one: FarmDevice, odd: dict[str, str], is_check: bool) -> None:
    farm = {"serial": "s2" if is_check else "s1", "labels": {"rack": "1"}, "is_check": is_check}
    header = {"schema": "gpuedge.conformance/1", "device": one.device, "identity": one.identity,
              "farm": farm, "host": "lab-1"}  # fmt: skip
    more = {"bits": "0011", "rms": 0.25}
    rows = {n: row(CASES[n], odd.get(n, "passed")) | more for n in task.ids}
    for name in set(odd) & set(rows):
        rows[name]["reason"] = EVIL
    name = f"{'checks' if is_check else 'shards'}/{task.shard}.jsonl"
    made.put(name, Results(header, rows).lines().decode())


def test_rows_are_a_table_that_answers_questions(tmp_path: Path) -> None:
    at = store(tmp_path / "a", device(), {ALL[0]: "failed"})
    file = tmp_path / "rows.parquet"
    assert table.export([at], str(file)) == len(ALL)
    import pyarrow.parquet as pq

    read = pq.read_table(file).to_pylist()
    assert {r["id"]: r["status"] for r in read} == dict.fromkeys(ALL, "passed") | {ALL[0]: "failed"}
    assert {tuple(r) for r in read} == {tuple(table.COLUMNS)}
    columns, found = table.query(
        [at], "select status, count(*) as n from rows group by 1 order by n"
    )
    assert (columns, found) == (["status", "n"], [["failed", 1], ["passed", len(ALL) - 1]])
    _, found = table.query([at], "describe rows")
    assert [row[0] for row in found] == list(table.COLUMNS), "as the page says"
    _, found = table.query([at], "select distinct key, host, bits, rms from rows")
    assert found == [[device().key, "lab-1", "0011", 0.25]]


SQL = (
    "",
    "-- nothing",
    "select * from read_csv('/etc/hostname')",
    "copy rows to '{}'",
    "nonsense",
    "attach '{}'",
)


@pytest.mark.parametrize("sql", some(SQL, 4))
def test_questions_reach_nothing_but_the_rows(sql: str, tmp_path: Path) -> None:
    at = store(tmp_path / "a", device(), {})
    with pytest.raises(InputError, match=r"cannot be answered|no question"):
        table.query([at], sql.format(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    at = store(tmp_path / "a", device(), {})
    shard = min((tmp_path / "a" / "shards").iterdir())
    for damage in (b'{"x', b"\xff\xfe\x00"):
        whole = shard.read_bytes()
        shard.write_bytes(whole + damage)
        with pytest.raises(InputError, match=shard.name):
            table.query([at], "select count(*) from rows")
        shard.write_bytes(whole)


@pytest.mark.parametrize("told", [None, "", "[]", "{}", '{"name": "vulkan"}'])
def test_results_count_though_the_file_of_their_device_is_lost(
    tmp_path: Path, told: str | None
) -> None:
    at = store(tmp_path / "a", device(), {ALL[0]: "failed"})
    file = tmp_path / "a" / "devices" / f"{device().key}.json"
    file.unlink()
    if told is not None:
        file.write_text(told)
    counts = report.collect([at]).counts()
    assert (counts["devices"], counts["failures"]) == (1, 1)


def test_a_damaged_summary_is_named(tmp_path: Path) -> None:
    at = store(tmp_path / "a", device(), {})
    (tmp_path / "a" / "summaries").mkdir()
    file = tmp_path / "a" / "summaries" / "20260101T000000Z-0.json"
    for damage in ({"excluded": 5}, {"excluded": [5]}, {"excluded": [{"why": 5}]}, [], "{"):
        file.write_text(damage if isinstance(damage, str) else json.dumps(damage))
        with pytest.raises(InputError, match=file.name):
            report.collect([at])
    told = [{"serial": "liar", "why": "so", "worker": "x"}, {"why": "how"}]
    file.write_text(json.dumps({"excluded": told}))
    page.write(report.collect([at]), [], str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert "<tr><td>liar</td><td>so</td></tr>\n<tr><td>?</td><td>how</td></tr>" in text


def test_halves_of_characters_are_escaped(tmp_path: Path) -> None:
    one = device()
    one = one.replace(identity={**one.identity, "name": "G\udcff", "GL_VENDOR": "Mesa\udcff"})
    at = store(tmp_path / "a", one, {ALL[0]: "failed"})
    for file in (tmp_path / "a" / "shards").iterdir():
        text = file.read_text().replace(json.dumps(EVIL), r'"\ud800"').replace('"s1"', r'"s\udcff"')
        file.write_text(text)
    sql = "select distinct serial, name, reason from rows where status = 'failed'"
    assert table.query([at], sql)[1] == [[r"s\udcff", r"G\udcff", r"\ud800"]]
    found = report.collect([at])
    made = proposals.proposed(found)
    page.write(found, made, str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert all(escaped in text for escaped in (r"s\udcff", r"G\udcff", r"\ud800"))
    proposals.write(made, None, str(tmp_path / "p"))
    pairs = json.loads((tmp_path / "p" / proposals.PAIRS).read_text())["pairs"]
    assert pairs[made[0].entry["id"]]["match"]["GL_VENDOR"] == "Mesa\udcff"
    begun(tmp_path / "a")[0].put("refused/reply.jsonl", "\udcff")
    assert (tmp_path / "a" / "refused" / "reply.jsonl").read_text() == r"\udcff"


def test_what_an_update_broke_is_a_regression(tmp_path: Path) -> None:
    old = store(tmp_path / "a", device("22.3.6"), {ALL[5]: "failed"})
    new = store(tmp_path / "b", device("23.0.0"), {ALL[5]: "failed", ALL[0]: "crashed"},
                when="2026-02-01")  # fmt: skip
    for order in ([old, new], [new, old]):
        (one,) = report.collect(order).regressions
        assert one.cases == (ALL[0],), "what failed before is none, and order is that of time"
        assert one.changed == "driver OpenGL ES 3.1 Mesa 22.3.6 to OpenGL ES 3.1 Mesa 23.0.0"
    library = store(tmp_path / "c", device("23.0.0"), {ALL[1]: "failed"}, when="2026-03-01",
                    version="9.9")  # fmt: skip
    found = report.collect([old, new, library])
    assert [one.changed.partition(" ")[0] for one in found.regressions] == ["driver", "gpuedge"]
    assert found.regressions[1].cases == (ALL[1],)
    assert found.flakes == []


def test_two_ways_to_one_gpu_are_not_an_update(tmp_path: Path) -> None:
    made = []
    for folder, version, bad in (("a", "1.0", {}), ("b", "2.0", {ALL[0]: "failed"})):
        for backend in ("Vulkan", "OpenGL"):  # a run has both; they fail in turn
            told = {"api": "wgpu", "os": "linux", "name": "GPU", "backend": backend}
            one = FarmDevice("wgpu:0", {**told, "driverInfo": f"{backend} {version}"})
            odd = bad if backend == "OpenGL" else {ALL[1]: "failed"}
            made.append(
                store(tmp_path / f"{folder}{backend}", one, odd, when=f"2026-01-0{version[0]}")
            )
    merged = [tmp_path / "a", tmp_path / "b"]
    for folder in merged:
        for backend in ("Vulkan", "OpenGL"):
            shutil.copytree(f"{folder}{backend}", folder, dirs_exist_ok=True)
    (one,) = report.collect([str(folder) for folder in merged]).regressions
    assert (one.cases, one.changed) == ((ALL[0],), "driver OpenGL 1.0 to OpenGL 2.0")


def test_a_case_that_changes_with_nothing_else_is_a_flake(tmp_path: Path) -> None:
    one = store(tmp_path / "a", device(), {}, check={ALL[2]: "failed"})
    two = store(tmp_path / "b", device(), {ALL[4]: "timeout"}, when="2026-02-01")
    found = report.collect([one, two])
    flakes = {f.case: f.statuses for f in found.flakes}
    assert flakes == {ALL[2]: ("failed", "passed"), ALL[4]: ("passed", "timeout")}
    assert found.regressions == []


def test_a_case_that_passed_when_it_ran_again_is_a_flake(tmp_path: Path) -> None:
    found = report.collect([store(tmp_path / "a", device(), {ALL[3]: "flake"})])
    assert [(f.case, f.statuses) for f in found.flakes] == [(ALL[3], ("flake",))]
    operator = found.results[0].by_operator()[CASES[ALL[3]].op]
    assert operator["bad"] == 1 and not operator["unsupported"]


def test_coverage_counts_what_was_executed(tmp_path: Path) -> None:
    at = store(tmp_path / "a", device(), {ALL[0]: "skipped", ALL[-1]: "failed"}, leave=1)
    (one,) = report.collect([at]).results
    left = len(shards(one.key, ALL, 4)[0].ids)
    skipped = sum(r["status"] == "skipped" for r in one.rows.values())
    assert one.statuses()["not_run"] == left
    assert one.coverage == pytest.approx((len(ALL) - left - skipped) / len(ALL))


class Tags(HTMLParser):
    """What a page refers to, and its headings."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.links += [v or "" for n, v in attrs if n in ("src", "href", "action")]


def test_page_needs_nothing_and_believes_nothing(tmp_path: Path) -> None:
    old = store(tmp_path / "a", device("22.3.6"), {})
    new = store(tmp_path / "b", device("23.0.0"), {ALL[0]: "crashed"}, when="2026-02-01",
                check={ALL[0]: "passed"})  # fmt: skip
    found = report.collect([old, new])
    page.write(found, proposals.proposed(found), str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.links == [] and tags.found.count("script") == 1, "data, and no program"
    assert EVIL not in text and "&lt;script&gt;alert" in text
    assert "url(" not in text and "@import" not in text
    figures = json.loads(text.partition('id="figures">')[2].partition("</script>")[0])
    assert (figures["runs"], figures["regressions"], figures["flakes"]) == (2, 1, 1)
    assert figures["failures"] == 1
    for op in {c.op for c in CASES.values()}:
        assert f'<th scope="row">{op}</th>' in text


def test_page_names_the_cases_that_failed_by_device(tmp_path: Path) -> None:
    bad = dict(zip(ALL, [*report.BAD, *["failed"] * 6, "flake"], strict=False))
    one = store(tmp_path / "a", device(), bad)
    two = store(tmp_path / "b", device("23.0.0"), {ALL[-1]: "timeout"}, when="2026-02-01")
    found = report.collect([one, two])
    assert (found.counts()["failures"], found.counts()["regressions"]) == (11, 1)
    page.write(found, [], str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert '<li class="bad"><b>11</b>failures</li>' in text
    part = text.partition('<h2 id="failures">')[2].partition("<h2")[0]
    first, second = part.split("<details")[1:]
    assert "22.3.6: 10 cases" in first and "and 2 more" in first
    assert first.count("<li><code>") == page.SHOWN_CASES and first.count("alert(1)") == 8
    assert "23.0.0: 1 case<" in second and ALL[-1] in second and "more" not in second


def test_an_entry_is_about_the_version_that_failed_where_it_is_told(tmp_path: Path) -> None:
    told = {"api": "vulkan", "name": "G", "os": "linux", "vendorID": 6880, "driverID": 10,
            "driverName": "SwiftShader driver"}  # fmt: skip
    raw = FarmDevice("vulkan:0", {**told, "driverVersion": 20971520})
    silent = FarmDevice("vulkan:0", told)
    for name, one in (("a", raw), ("b", silent)):
        store(tmp_path / name, one, {ALL[0]: "failed"})
    made = proposals.proposed(report.collect([str(tmp_path / "a"), str(tmp_path / "b")]))
    by_version = {"driver" in one.entry["match"][0]: one for one in made}
    assert len(made) == 2
    (entry, pair), other = (by_version[True].entry, by_version[True].pair), by_version[False].entry
    assert entry["match"][0]["driver"] == {
        "scheme": "vk-raw", "intervals": [{"from": [20971520], "below": [20971521]}]
    }  # fmt: skip
    assert "every version" not in entry["summary"]
    assert other["summary"].endswith("It concerns every version of the driver.")
    newer = {**pair["match"], "driverVersion": 20971521}
    found = [result(parse(entry, "vulkan"), subject(r, host={}))[0] for r in (pair["match"], newer)]
    assert found == [TRUE, FALSE]


def test_proposals_are_valid_in_the_database(tmp_path: Path) -> None:
    only = "reduce_map"
    one = store(tmp_path / "a", device(), {ALL[0]: "failed", ALL[1]: "crashed"})
    two = store(tmp_path / "b", device(level="gles20"), {ALL[2]: "failed"})
    swift = FarmDevice("vulkan:0", {
        "api": "vulkan", "name": "SwiftShader Device (Subzero)", "os": "linux",
        "driverInfo": "", "driverName": "SwiftShader driver", "driverID": 10, "vendorID": 6880,
        "driverVersion": 20971520, "deviceID": 49374, "deviceUUID": "00"})  # fmt: skip
    three = store(tmp_path / "c", swift, {ALL[3]: "failed"})
    for file in (tmp_path / "c" / "shards").iterdir():  # it fails by a kernel of its own
        text = file.read_text().splitlines()
        lines = [ln.replace("elementwise_map", only) if ALL[3] in ln else ln for ln in text]
        file.write_text("\n".join(lines))
    found = report.collect([one, two, three])
    made = proposals.proposed(found, str(ROOT / "capability_db"))
    by_name = {p.file: p for p in made}
    assert set(by_name) == {"entries/gles/mesa-software.json", "entries/vulkan/swiftshader.json"}
    mesa, other = (by_name[name] for name in sorted(by_name))
    assert mesa.cases == tuple(ALL[:3]), "one driver is one entry"
    assert mesa.entry["action"] == {"disable_levels": ["gles20", "gles31"]}
    assert (mesa.entry["effect"], mesa.entry["state"]) == ("crash", "canary")
    assert mesa.entry["match"][0]["driver"]["scheme"] == "gl-mesa"
    assert [e["case"] for e in mesa.entry["evidence"]] == ALL[:3]
    assert other.entry["action"] == {"disable_kernels": [only]}
    assert "deviceUUID" not in other.pair["match"]
    copy = tmp_path / "db"
    shutil.copytree(ROOT / "capability_db", copy)
    names = proposals.write(made, str(copy), str(tmp_path / "proposed"))
    assert names == ["entries/gles/mesa-software.json", "entries/vulkan/swiftshader.json",
                     "fixtures/pairs.json"]  # fmt: skip
    old = (copy / "entries/vulkan/swiftshader.json").read_text().splitlines()
    shutil.copytree(tmp_path / "proposed", copy, dirs_exist_ok=True)
    new = (copy / "entries/vulkan/swiftshader.json").read_text().splitlines()
    assert [line.rstrip(",") for line in old if line.rstrip(",") not in
            {n.rstrip(",") for n in new}] == [], "what was there stays as it was"  # fmt: skip
    problems = lint(copy, kernels={v.id for v in variants()})
    assert [str(p) for p in problems if p.severity == "error"] == []
    seal(copy)
    check_folder(copy)
    check_schemas(copy)
