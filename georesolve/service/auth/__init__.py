"""Who may ask: keys, their owners, and what each may do."""
