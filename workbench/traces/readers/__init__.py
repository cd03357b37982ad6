"""One module per format, each with `read`: bytes -> EVENTS or MEASUREMENTS."""
