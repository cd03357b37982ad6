"""What every room shares: units, tables, checks, spans, progress, Absent."""
