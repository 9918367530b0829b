"""How fast, beside what: the ladder of `georesolve bench`, and scripts that measure a part each."""
