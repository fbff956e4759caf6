"""A farm: the conformance cases on every device that workers announce, scheduled by Dask.

`engine` is all that speaks to Dask; `coordinator` decides what is asked of whom and what is
believed; `store` keeps it. Run by ``gpuedge farm``; see ``docs/farm.md``.
"""

from __future__ import annotations

SCHEMA = "gpuedge.farm/1"
"""Of the summary of a run."""
