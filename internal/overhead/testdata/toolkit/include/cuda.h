// Stands in for the toolkit's header of this name.
