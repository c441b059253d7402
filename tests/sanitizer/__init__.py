"""Programs with one fault each, and what mends it."""
