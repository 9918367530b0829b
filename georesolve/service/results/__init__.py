"""Results as HTTP answers."""
