"""Other packages' names for cellblock's interfaces."""
