"""The null backend."""
