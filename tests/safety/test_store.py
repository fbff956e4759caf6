"""Sealed files, and the table of all files on disk."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import gpuedge
from gpuedge.cli.cache import cache_files
from gpuedge.safety import store
from gpuedge.safety.paths import data_folder

SCHEMA = "test/1"


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    body = {"a": [1, 2.5, None], "b": {"c": "\u20ac"}}
    assert store.save_sealed(tmp_path / "f", SCHEMA, body)
    assert store.load_sealed(tmp_path / "f", SCHEMA) == body
    assert store.save_bytes(tmp_path / "g", SCHEMA, b"\n\0any", "a driver")
    assert store.load_bytes(tmp_path / "g", SCHEMA, "a driver") == b"\n\0any"


def test_every_changed_byte_and_every_cut_is_seen(tmp_path: Path) -> None:
    store.save_bytes(tmp_path / "f", SCHEMA, b"body", "who")
    data = (tmp_path / "f").read_bytes()
    for at in range(len(data)):
        damaged = data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]
        assert store.unsealed_bytes(damaged, SCHEMA, "who") is None
        assert store.unsealed_bytes(data[:at], SCHEMA, "who") is None
    assert store.unsealed_bytes(data + b"x", SCHEMA, "who") is None
    assert store.unsealed_bytes(data, SCHEMA, "who") == b"body"


def test_another_schema_or_driver_reads_nothing(tmp_path: Path) -> None:
    store.save_bytes(tmp_path / "f", SCHEMA, b"body", "who")
    assert store.load_bytes(tmp_path / "f", "test/2", "who") is None
    assert store.load_bytes(tmp_path / "f", SCHEMA, "another") is None


def test_file_of_the_earlier_layout_is_dropped_silently(tmp_path: Path) -> None:
    old = {"body": {}, "format": 1, "schema": SCHEMA, "sha256": "0" * 64}
    (tmp_path / "f").write_text(json.dumps(old) + "\n")
    assert store.load_sealed(tmp_path / "f", SCHEMA) is None
    assert store.update_sealed(tmp_path / "f", SCHEMA, lambda body: {**body, "new": 1})
    assert store.load_sealed(tmp_path / "f", SCHEMA) == {"new": 1}


@pytest.mark.parametrize("body", [{"a": (1, 2)}, {1: 2}, {"a": float("nan")}, {"a": object()}])
def test_what_would_not_read_back_is_not_written(tmp_path: Path, body: dict[str, object]) -> None:
    assert not store.save_sealed(tmp_path / "f", SCHEMA, body)
    assert not (tmp_path / "f").exists()


def test_size_is_bounded(tmp_path: Path) -> None:
    assert not store.save_bytes(tmp_path / "f", SCHEMA, b"12345", max_bytes=4)
    assert store.save_bytes(tmp_path / "f", SCHEMA, b"12345", max_bytes=5)
    assert store.load_bytes(tmp_path / "f", SCHEMA, max_bytes=5) == b"12345"
    (tmp_path / "f").write_bytes(b"x" * (store.MAX_BYTES + 2 * store.MAX_HEAD))
    assert store.load_sealed(tmp_path / "f", SCHEMA) is None


def test_table_knows_every_file_and_no_other(tmp_path: Path) -> None:
    for kind in store.FILES:
        name = kind.pattern.replace("**/lock", "pipelines/lock").replace("**", "a/b/c")
        path = tmp_path / name.replace("*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        path.with_name(f".{path.name}.1.ab").write_bytes(b"")
    (tmp_path / "mine.txt").write_text("not ours")
    (tmp_path / "pipelines" / "notes").write_text("not ours")
    found = {path.relative_to(tmp_path).as_posix() for path in cache_files(tmp_path)}
    assert {"launches.json", ".launches.json.1.ab", "crashes/x.mark", "pipelines/x.bad"} <= found
    assert "capability_db/versions/a/b/c" in found
    files = {p for p in tmp_path.rglob("*") if p.is_file()}
    assert {p.name for p in files if p.relative_to(tmp_path).as_posix() not in found} == {
        "mine.txt", "notes",
    }  # fmt: skip


def test_every_file_named_in_code_is_in_the_table() -> None:
    """Constants called FILE that name a JSON or binary file are rows of the table."""
    package = Path(gpuedge.__file__).parent
    named = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {t.id for t in node.targets if isinstance(t, ast.Name)}
                value = node.value.value
                if any("FILE" in name for name in names) and isinstance(value, str):
                    named.add(value)
    known = {kind.pattern.rpartition("/")[2] for kind in store.FILES}
    assert "launches.json" in named
    packaged = {path.name for path in Path(data_folder("capability_db")).iterdir()}
    assert {n for n in named if n.endswith((".json", ".bin"))} - packaged <= known
