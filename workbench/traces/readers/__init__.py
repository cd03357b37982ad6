"""One module a format, each with `read`: bytes -> EVENTS or MEASUREMENTS; none else knows one."""
