"""Executors: compile and run graph segments on a device."""
