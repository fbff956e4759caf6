"""``gpuedge db sign`` and ``db update``: both ends of signed updates."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from gpuedge.capdb.updates.repository import LONG_DAYS
from gpuedge.cli.output import Output
from gpuedge.core.errors import UsageError


def update(options: argparse.Namespace, output: Output) -> int:
    """Get a newer database, or go back; 1 where that was refused."""
    from gpuedge.capdb.updates import update as updating

    is_named = options.source is not None and bool(options.source.strip())
    if options.rollback == is_named or (options.rollback and options.source is not None):
        raise UsageError(
            "`db update` needs a mirror, or --rollback without one.",
            asked_by="the command line",
            hint="gpuedge db update https://example.org/gpuedge/ --root root.json",
        )
    if options.rollback:
        outcome = updating.rollback()
    else:
        seconds = updating.DEADLINE_S if options.deadline is None else options.deadline
        with output.working(f"asking {options.source}"):
            outcome = updating.update(
                _mirror(options.source),
                root=None if options.root is None else Path(options.root),
                deadline_s=seconds,
            )
    output.document(
        {
            "schema": "gpuedge.db.update/1",
            "sentence": outcome.sentence,
            **outcome.as_dict(),
        }
    )
    output.text(outcome.sentence)
    return 1 if outcome.status == "kept" else 0


def _mirror(text: str) -> str | Path:
    return text if "://" in text else Path(text)


def sign(options: argparse.Namespace, output: Output) -> int:
    """Take one step of publishing; the document names what was written."""
    made = _STEPS[options.step](options, Path(options.repository), Path(options.keys))
    output.document({"schema": "gpuedge.db.sign/1", "step": options.step, **made})
    output.text("; ".join(f"{name}: {value}" for name, value in made.items()))
    return 0


def _init(options: argparse.Namespace, repository: Path, keys: Path) -> dict[str, Any]:
    from gpuedge.capdb.updates import signing

    root = signing.init(
        repository,
        keys,
        threshold=options.threshold,
        root_keys=options.root_keys,
        expires_days=options.days or LONG_DAYS,
    )
    return {"root": str(root)}


def _publish(options: argparse.Namespace, repository: Path, keys: Path) -> dict[str, Any]:
    from gpuedge.capdb.updates import signing

    if options.database is None:
        raise UsageError(
            "`db sign publish` needs the database to publish.",
            asked_by="the command line",
            hint="--database FOLDER, sealed by gpuedge db validate FOLDER --seal",
        )
    database = Path(options.database)
    done = signing.publish(
        database, repository, keys, check=_unfit, expires_days=options.days or signing.EXPIRES_DAYS
    )
    return done.as_dict()


def _unfit(folder: Path) -> list[str]:
    """Return what the lint finds: what it calls an error is not published."""
    from gpuedge.capdb.lint import lint
    from gpuedge.cli.db_check import kernels

    return lint.fitness(folder, kernels=kernels())


def _renew(options: argparse.Namespace, repository: Path, keys: Path) -> dict[str, Any]:
    from gpuedge.capdb.updates import signing

    return signing.renew(
        repository, keys, expires_days=options.days or signing.EXPIRES_DAYS
    ).as_dict()


def _rotate(options: argparse.Namespace, repository: Path, keys: Path) -> dict[str, Any]:
    from gpuedge.capdb.updates import signing

    if not options.role:
        raise UsageError(
            "`db sign rotate` needs the roles whose keys are replaced.",
            asked_by="the command line",
            hint="--role root --role timestamp",
        )
    return {
        "root": str(
            signing.rotate(repository, keys, options.role, expires_days=options.days or LONG_DAYS)
        )
    }


_STEPS = {"init": _init, "publish": _publish, "renew": _renew, "rotate": _rotate}
