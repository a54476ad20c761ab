"""The league table: every method of the catalogue on small tasks, at equal iterations, bytes and seconds."""
