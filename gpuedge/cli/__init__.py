"""The command line: one file per verb. Only here is ``rich`` imported, and only to print tables."""
