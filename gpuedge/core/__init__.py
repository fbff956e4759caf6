"""Plain data that every room may use: errors, reasons, records, caps, identity, dtypes."""
