"""Whether files and entries keep to the schema, each entry by itself."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import jsonschema

from capdb.rules import Folder, Problem
from gpuedge.safety import paths


def check(folder: Folder) -> Iterator[Problem]:
    """Yield what breaks the schema."""
    body = json.loads((paths.data_dir("capability_db") / "entries.schema.json").read_bytes())
    validator = jsonschema.Draft202012Validator({**body["$defs"]["entry"], "$defs": body["$defs"]})
    for row in folder.rows:
        error = jsonschema.exceptions.best_match(validator.iter_errors(row.record))
        if error is not None:
            text = f"{error.json_path.removeprefix('$.')}: {error.message:.200}"
            yield Problem("schema", row.id, row.file, text)
        elif row.refusal:
            yield Problem("schema", row.id, row.file, row.refusal)
    counts = Counter(row.id for row in folder.rows if row.id)
    for row in folder.rows:
        if counts[row.id] > 1:
            text = f"{counts[row.id]} entries have this id"
            yield Problem("duplicate-id", row.id, row.file, text)
