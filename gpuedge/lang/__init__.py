"""The kernel language: text in, typed AST, printed for each API."""
