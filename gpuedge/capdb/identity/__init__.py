"""Identifying devices: makers, families, models, layers and versions, from what they report."""
