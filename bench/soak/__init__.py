"""Everything at once, for long: nothing wrong, nothing lost, nothing stuck."""
