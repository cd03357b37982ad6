"""What all rooms share: units, tables, checks, spans, progress, Absent."""
