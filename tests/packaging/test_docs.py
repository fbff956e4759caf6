"""The documentation against the code: what a page lists exists, and links lead somewhere."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from required import absent

import gpuedge
from gpuedge.cli import main as cli
from gpuedge.core import errors
from gpuedge.core.caps import VULKAN_MINIMUM
from gpuedge.core.errors import GpuEdgeError
from gpuedge.core.reasons import STATUSES
from gpuedge.graph.ir import Graph, Node, TensorType
from gpuedge.opset.elementwise import ROWS, Row
from gpuedge.plan.planner import why_not

ROOT = Path(__file__).resolve().parents[2]
MESA = ("intel", "intel_hasvk", "lvp", "radeon")
"""Vulkan drivers that Debian's package mesa-vulkan-drivers installs on a PC."""

MOST_PAGES, MOST_WORDS, MOST_IN_ALL = 25, 2_500, 36_400
"""Of docs/, generated tables and decision records apart; in all with the README."""

WIDTH = 100
"""Where prose breaks; links and code may be longer."""

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def cells(text: str) -> list[list[str]]:
    """The cells of all table rows of a page."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[c.strip() for c in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def tree(kind: type[GpuEdgeError] = GpuEdgeError) -> list[type[GpuEdgeError]]:
    return [kind, *(k for child in kind.__subclasses__() for k in tree(child))]


def test_every_error_is_listed_with_its_exit_code() -> None:
    ours = {k for k in tree() if k.__module__ == errors.__name__}
    wanted = {(k.code, f"`{k.__name__}`", str(cli.exit_code(k("")))) for k in ours}
    rows = cells(page("tables/errors.md"))
    listed = {tuple(row[:3]) for row in rows if row[0].startswith("GE-")}
    assert listed == wanted


def test_error_codes_are_unique() -> None:
    codes = [k.code for k in tree() if k.__module__ == errors.__name__]
    assert len(codes) == len(set(codes))


def test_page_of_options_is_what_the_parsers_say() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "cli_options.py"))
    assert page("tables/cli-options.md") == made["page"](), "run: python tools/cli_options.py"


def test_cli_page_documents_no_verb_that_is_missing() -> None:
    assert set(re.findall(r"^## `gpuedge (\w+)", page("cli.md"), re.MULTILINE)) == set(cli.VERBS)


def test_troubleshooting_explains_every_status() -> None:
    listed = {row[0].strip("`") for row in cells(page("troubleshooting.md"))}
    assert set(STATUSES) <= listed


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", t).strip().lower().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_inside_the_checkout_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        pages = [target] if target.suffix == ".md" and target.is_file() else []
        known = {"", *(a for p in pages for a in anchors(p.read_text(encoding="utf-8")))}
        if not target.exists() or anchor not in known:
            broken.append(link)
    assert broken == []


def test_index_lists_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", page("index.md")))
    assert {p.name for p in (ROOT / "docs").glob("*.md")} - {"index.md"} == linked


def words(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").split())


def test_there_are_few_pages_and_words() -> None:
    pages = list((ROOT / "docs").glob("*.md"))
    assert len(pages) <= MOST_PAGES
    assert sum(map(words, [*pages, ROOT / "README.md"])) <= MOST_IN_ALL


OWN = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
UNBROKEN: set[str] = set()
"""Pages whose lines are still longer."""


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_page_is_short_and_broken_into_lines(path: Path) -> None:
    assert words(path) <= MOST_WORDS
    prose = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for line in prose.splitlines() if not line.startswith(("|", "    ", "#", "!"))]
    long = [line for line in lines if len(line) > WIDTH and " " in line.strip()[3:]]
    assert bool(long) == (path.name in UNBROKEN), long


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(path: Path) -> None:
    folders = (ROOT, ROOT / "gpuedge", path.parent)
    if path.parent.name in {"decisions", "results"} or path.name == "CHANGELOG.md":
        return  # these tell of earlier states
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|toml|md|kern))`", text)
    assert [n for n in named if not any((f / n).exists() for f in folders)] == []


def test_places_that_the_glossary_names_are_there() -> None:
    table = page("glossary.md").partition("\n## Words")[0]
    places = [re.findall(r"`([\w./]+)`", row[1]) for row in cells(table)]
    assert len(places) > 10
    for named in places:
        files = [ROOT / "gpuedge" / n for n in named if n.endswith(".py")]
        text = "".join(f.read_text(encoding="utf-8") for f in files)
        words = [w for n in named if "/" not in n for w in n.split(".")]
        assert [w for w in words if not re.search(rf"(?:class|def) {w}\b", text)] == []


@pytest.mark.parametrize("path", OWN, ids=lambda p: p.name)
def test_python_on_a_page_parses_and_uses_names_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = [ast.parse(block) for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    nodes = [node for tree in code for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    names = [n.attr for n in nodes if isinstance(n.value, ast.Name) and n.value.id == "gpuedge"]
    assert [name for name in names if name not in gpuedge.__all__] == []


def test_what_is_generated_is_up_to_date() -> None:
    made = runpy.run_path(str(ROOT / "tools" / "generate.py"))["files"]()
    for path, text in made.items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: run make generate"


@pytest.mark.parametrize("row", [r for r in ROWS if not r.is_variadic], ids=lambda r: r.op)
def test_every_elementwise_row_has_a_kernel(row: Row) -> None:
    names = row.operands
    kind = TensorType("float32", (2, 4))
    node = Node(row.op, names, ("out",))
    types = dict.fromkeys((*names, "out"), kind)
    graph = Graph((node,), names, ("out",), types, opset={"": 24})
    assert why_not(node, graph, VULKAN_MINIMUM) is None


def test_page_counts_the_entries_that_are_there() -> None:
    files = sorted((ROOT / "capability_db" / "entries").glob("*/*.json"))
    entries = [e for f in files for e in json.loads(f.read_text(encoding="utf-8"))["entries"]]
    active = [e for e in entries if e["state"] == "active"]
    deadly = [e for e in active if e["effect"] in ("crash", "crash_at_load", "hang")]
    away = sum(not {"disable_backend", "disable_levels"}.isdisjoint(e["action"]) for e in deadly)
    text = " ".join(page("capability-db.md").split())
    assert f"The database holds {len(entries)} entries" in text
    assert (
        f"Of the {len(deadly)} active ones about crashes and hangs, {away} take a backend or a "
        f"level of the driver away at once, and {len(deadly) - away} a feature, a limit or"
    ) in text
    others = [e for e in active if e not in deadly]
    taking = [e for e in others if {"disable_backend", "disable_levels"} & set(e["action"])]
    sure = [e for e in taking if e["probe"]["may"] == "confirm"]
    assert len(sure) == 6 and "Six more deny exact builds of drivers" in text
    assert all("builds" in json.dumps(e["match"]) for e in sure)


def test_lookup_on_the_page_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.findall(r"```python\n(.*?)```", page("capability-db.md"), re.DOTALL)[0]
    exec(code, {})
    assert f"or None: {capsys.readouterr().out}" in code


def same_everywhere(text: str) -> str:
    """Take out what differs between versions of the driver."""
    return re.sub(r"\(LLVM [^)]*\)", "(LLVM)", text)


def test_readme_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    wanted = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
    assert (len(code), len(wanted)) == (1, 1)
    folder = Path("/usr/share/vulkan/icd.d")
    manifests = sorted(folder.glob("lvp_icd*.json"))
    if not any(Path("/dev/dri").glob("renderD*")):  # then Mesa's other drivers find no device
        manifests = sorted(m for kind in MESA for m in folder.glob(f"{kind}_icd*.json"))
    if not any(m.name.startswith("lvp") for m in manifests):
        absent("the lavapipe driver is not installed: apt-get install mesa-vulkan-drivers")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VK_")}
    named = os.pathsep.join(map(str, manifests))
    environment |= {"VK_DRIVER_FILES": named, "GPUEDGE_CACHE_DIR": str(tmp_path)}
    probe = [sys.executable, "-m", "gpuedge", "probe", "--deadline", "100", "-q"]
    subprocess.run(probe, env=environment, check=True, capture_output=True, timeout=280)
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=environment,
        timeout=280,
    )
    assert same_everywhere(done.stdout) == same_everywhere("".join(wanted))


def test_contributing_and_changelog_know_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {gpuedge.__version__}" in changelog
