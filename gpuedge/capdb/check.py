"""Checking a database folder: as the library reads it, and by the JSON Schemas.

For where databases are made and installed. A process that looks devices up trusts the digests.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from gpuedge.capdb import classes, source
from gpuedge.capdb.database import Database
from gpuedge.capdb.files import bad, contents, document
from gpuedge.capdb.identity import families, names
from gpuedge.core.errors import UpdateError
from gpuedge.safety import paths
from gpuedge.safety.packages import needed


def check_folder(path: Path, *, is_sealed: bool = True) -> Database:
    """Read everything in a folder from its own files, and return the database if all is good.

    Tuning classes, names and families are read besides the entries. Nothing is cached. Where
    `is_sealed` is false, ``database.json`` is not looked at: the folder is being worked on. Raises
    DatabaseError for the first thing that is wrong, with its file.
    """
    folder = Path(path).absolute()
    database = Database(folder, *source.read(folder, is_sealed=is_sealed))
    database.about()
    classes.load(folder)
    names.load_names(folder)
    families.load_families(folder)
    return database


def check_schemas(path: Path) -> None:
    """Check every file of a folder that the library reads against its JSON Schema.

    Schemas that the folder holds come first: they must be schemas. Raises DatabaseError for the
    first thing that is wrong, UpdateError without the extra.
    """
    folder = Path(path).absolute()
    for name in (*sorted(f.name for f in folder.glob("*.schema.json")), *source.names(folder)):
        wrong = first_error(name, document(folder / name, contents(folder / name)))
        if wrong:
            raise bad(folder / name, wrong)


def first_error(name: str, body: dict[str, Any]) -> str:
    """Return what is wrong with the document of a file, by its schema; empty if nothing is."""
    library = import_extra("jsonschema")
    checker = library.Draft202012Validator
    schema = checker.META_SCHEMA
    if not name.endswith(".schema.json"):
        kind = Path(name).parts[0].removesuffix(".json")
        place = paths.data_dir("capability_db") / f"{kind}.schema.json"
        schema = document(place, contents(place))
    error = library.exceptions.best_match(checker(schema).iter_errors(body))
    return "" if error is None else f"{error.json_path}: {error.message:.200}"


def import_extra(name: str) -> Any:
    """Return a module that the extra ``updates`` brings. Raises UpdateError without it."""
    with needed(
        name.partition(".")[0], "checking or updating the capability database", UpdateError
    ):
        return import_module(name)
