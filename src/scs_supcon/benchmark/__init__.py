"""Tables of runs: a table expands to recipes, recipes to runs, runs to numbers and statistics."""
