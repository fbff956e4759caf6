"""Lets ``python -m gpuedge VERB`` do what ``gpuedge VERB`` does."""

from __future__ import annotations

import sys

from gpuedge.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
