"""Rows of many runs as one table: a Parquet file, and questions in SQL about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import islice
from pathlib import Path
from typing import Any

from gpuedge.conformance.results import Results
from gpuedge.core.errors import InputError
from gpuedge.core.text import encoded, plain
from gpuedge.farm.store import RunStore, runs_in
from gpuedge.safety import temporary
from gpuedge.safety.packages import needed
from gpuedge.safety.paths import save_named

COLUMNS: Mapping[str, str] = {
    "run": "string", "profile": "string", "started": "string", "gpuedge": "string",
    "key": "string", "device": "string", "level": "string", "name": "string", "driver": "string",
    "identity": "string", "serial": "string", "labels": "string", "is_check": "bool",
    "id": "string", "op": "string", "dtype": "string", "shape": "string", "data": "string",
    "storage": "string", "variant": "string", "status": "string", "code": "string",
    "reason": "string", "seconds": "double", "worst": "double", "kernels": "string",
    "rms": "double", "bits": "string", "host": "string",
}  # fmt: skip
"""Columns and their types. `identity` and `labels` are JSON, `kernels` are joined by ``+``."""


GROUP = 20_000
"""Rows that are held at once."""


def driver_of(identity: Mapping[str, Any]) -> str:
    """Return what a driver says of its version, in one text."""
    names = ("driverInfo", "GL_VERSION", "driverVersion")
    return str(next((identity[name] for name in names if identity.get(name)), ""))


def shards_of(store: RunStore) -> Iterator[tuple[str, Results]]:
    """Yield the name and the results of every shard of a store, then those of checks."""
    for folder in ("shards", "checks"):
        for name in store.names(folder):
            results = store.results(f"{folder}/{name}")
            if results is not None:
                yield name, results


def rows(stores: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of runs, as a table can hold them. Raises what `runs_in` does."""
    for run, store in runs_in(stores):
        for name, results in shards_of(store):
            header = results.header
            farm, identity = header.get("farm", {}), header.get("identity", {})
            shared = {
                "run": run.id, "profile": run.profile, "started": header.get("started"),
                "gpuedge": run.version, "key": name.partition(".")[0],
                "device": header.get("device"), "level": name.partition("-")[0],
                "name": identity.get("name"), "driver": driver_of(identity),
                "identity": json.dumps(identity, sort_keys=True), "serial": farm.get("serial"),
                "labels": json.dumps(farm.get("labels", {}), sort_keys=True),
                "is_check": bool(farm.get("is_check")), "host": header.get("host"),
            }  # fmt: skip
            for row in results.rows.values():
                kernels = "+".join(map(str, row.get("kernels") or ()))
                found = {**{n: row.get(n) for n in COLUMNS}, **shared, "kernels": kernels}
                yield {n: encoded(v).decode() if isinstance(v, str) else v
                       for n, v in found.items()}  # fmt: skip


def export(stores: Sequence[str], path: str) -> int:
    """Write the rows of runs to a Parquet file, in one step; return how many there are.

    Raises InputError (GE-203) where a store holds no run, two hold the same, or the file cannot be
    written.
    """
    with needed("pyarrow", "gpuedge farm"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    schema = pa.schema([(name, getattr(pa, _ARROW[kind])()) for name, kind in COLUMNS.items()])
    sink, count, left = pa.BufferOutputStream(), 0, rows(stores)
    try:
        with pq.ParquetWriter(sink, schema) as writer:
            while some := list(islice(left, GROUP)):
                writer.write_table(pa.Table.from_pylist(some, schema))
                count += len(some)
    except pa.ArrowException as error:
        raise InputError("The rows of these runs do not make a table.", known=str(error)) from None
    save_named(Path(path), sink.getvalue().to_pybytes(), "--output")
    return count


_ARROW = {"string": "string", "bool": "bool_", "double": "float64"}


def query(stores: Sequence[str], sql: str) -> tuple[list[str], list[list[Any]]]:
    """Answer a question about the table ``rows``; return the names of columns, and rows.

    The question reaches nothing but that table: no file and no network.

    Raises
    ------
    InputError (GE-203)
        It is no SQL that DuckDB understands, or stores hold no run or the same.
    """
    with needed("duckdb", "gpuedge farm"):
        import duckdb
    with temporary.folder("gpuedge-farm-") as folder, duckdb.connect() as base:
        export(stores, str(folder / "rows.parquet"))
        base.execute("SET autoinstall_known_extensions = false")
        base.execute(
            "CREATE TABLE rows AS SELECT * FROM read_parquet($1)", [str(folder / "rows.parquet")]
        )
        base.execute("SET enable_external_access = false")
        base.execute("SET lock_configuration = true")
        try:
            found = _asked(base, sql)
            columns = [name for name, *_ in found.description or ()]
            return columns, [[_plain(value) for value in row] for row in found.fetchall()]
        except duckdb.Error as error:
            raise InputError(
                "That question cannot be answered.",
                asked_by="SQL",
                known=plain(str(error), 500, lines=True),
                hint=f"the table is called rows; its columns: {', '.join(COLUMNS)}",
            ) from None


def _asked(base: Any, sql: str) -> Any:
    """Return what DuckDB answers, in a thread, as it looks for no signals meanwhile."""
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(base.execute, sql)
        try:
            while not asked.done():
                wait([asked], TICK_S)  # a signal that arrives between two of these is seen
        except BaseException:
            base.interrupt()
            raise
    found = asked.result()
    if found is None:
        raise InputError("There is no question in it.", asked_by="SQL", known=f"{sql!r}")
    return found


TICK_S = 0.1


def _plain(value: object) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)
