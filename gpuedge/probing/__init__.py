"""Probing: open each driver in a disposable child process and check its numbers."""
