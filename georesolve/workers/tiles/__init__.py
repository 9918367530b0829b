"""Results and sets as a web map draws them."""
