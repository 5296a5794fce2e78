"""Compare methods: table -> recipes -> runs -> results -> statistics -> page."""
