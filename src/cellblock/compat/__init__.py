"""Names of other packages under which programs find cellblock."""
