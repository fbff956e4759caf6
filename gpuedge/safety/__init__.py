"""Mechanisms that several rooms share to stay in control when a driver misbehaves."""
