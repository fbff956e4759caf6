"""Templates of reports and jobs, filled by Jinja."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuedge.safety.packages import needed


def load_jinja(asked_by: str) -> Any:
    """Return the package that fills templates. Raises MissingPackageError (GE-104)."""
    with needed("jinja2", asked_by):
        import jinja2
    return jinja2


def rendered(template: Path, asked_by: str, **values: Any) -> str:
    """Return a template with its values; in HTML all of them are escaped.

    Raises MissingPackageError (GE-104), for what `asked_by` asked.
    """
    jinja2 = load_jinja(asked_by)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent), undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=jinja2.select_autoescape(["html", "html.j2"]),
    )  # fmt: skip
    return str(environment.get_template(template.name).render(**values))
