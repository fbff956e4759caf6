"""Deciding: predict latencies on each device and choose by policy, with reasons."""
