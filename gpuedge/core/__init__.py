"""Plain data that every room may use: errors, reasons, caps, identity, config, paths, dtypes."""
