"""Syntax trees of files, each made once for all tests of a process that look at the house."""

from __future__ import annotations

import ast
from functools import cache


@cache
def parsed(text: str) -> ast.Module:
    """Return the syntax tree of a text; not to be changed."""
    return ast.parse(text)
