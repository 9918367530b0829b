"""What users bring, read and checked: tables of points. No HTTP, no sandbox, no database."""
