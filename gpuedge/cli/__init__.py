"""The command line: one file per verb. ``rich`` is imported only here, and only for terminals."""
