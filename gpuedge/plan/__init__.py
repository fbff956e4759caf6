"""Planners: from an operation and its shapes to kernel passes and a memory plan."""
