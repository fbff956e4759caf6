"""Which rows of a report are routes to one physical device, and which route is the best.

A GPU is often reached by several APIs and drivers: through Vulkan, through OpenGL ES, through
WebGPU over either. Rows are one device if they report the same UUID, or else the same model. Models
are compared by vendor and device number where both rows know them, else by name. Plain data; on the
path of a cached probe.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuedge.probing.report import ProbeRow


def with_routes(rows: Sequence[ProbeRow]) -> tuple[ProbeRow, ...]:
    """Return the rows with `physical` and `route` filled in.

    The best route is the one whose backend comes first in the rows, of those that the capability
    database does not demote; routes that do not work have no rank. Several equal devices of one
    driver are told apart by their order: APIs list devices of a machine in the same order more
    often than not, and where they do not, the two are equal anyway.
    """
    names = _physical(rows)
    order = {name: i for i, name in enumerate(dict.fromkeys(r.backend for r in rows))}
    ranks: dict[int, int] = {}
    counts: dict[str, int] = {}
    for i in sorted(
        range(len(rows)), key=lambda i: (rows[i].is_demoted, order[rows[i].backend], i)
    ):
        if names[i] and rows[i].is_usable:
            counts[names[i]] = counts.get(names[i], 0) + 1
            ranks[i] = counts[names[i]]
    return tuple(row.replace(physical=names[i], route=ranks.get(i)) for i, row in enumerate(rows))


def _physical(rows: Sequence[ProbeRow]) -> list[str]:
    """Return the name of each row's physical device, empty where no device was reached."""
    models = _models(rows)
    seen: dict[tuple[str, str, str], int] = {}
    by_uuid: dict[str, str] = {}
    found: list[str] = []
    for row, model in zip(rows, models, strict=True):
        if row.index is None or not model:
            found.append("")
            continue
        uuid = _uuid(row)
        if uuid in by_uuid:
            found.append(by_uuid[uuid])
            continue
        driver = (row.backend, row.key, model)
        seen[driver] = count = seen.get(driver, 0) + 1
        name = model if count == 1 else f"{model} #{count}"
        if uuid:
            by_uuid[uuid] = name
        found.append(name)
    return found


def _models(rows: Sequence[ProbeRow]) -> list[str]:
    """Return one name per model: rows with equal numbers share the name that was seen first."""
    by_numbers: dict[tuple[object, object], str] = {}
    same: dict[str, str] = {}
    for row in rows:
        numbers = (row.identity.get("vendorID"), row.identity.get("deviceID"))
        name = row.model or row.name
        # A device number of zero is what layers write who know none.
        if row.index is not None and all(numbers):
            same.setdefault(name, by_numbers.setdefault(numbers, name))
    return [same.get(row.model or row.name, row.model or row.name) for row in rows]


def _uuid(row: ProbeRow) -> str:
    """Return a device's UUID as text, empty where it is unknown or all zeros.

    Rasterisers have one per version or per project, not per device.
    """
    if row.is_software:
        return ""
    text = row.identity.get("deviceUUID")
    return text if isinstance(text, str) and text.strip("0-") else ""
