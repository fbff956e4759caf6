"""The capability database: load, match, explain."""
