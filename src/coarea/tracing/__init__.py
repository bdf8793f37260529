"""A user's functions as jaxprs, and what goes wrong while they are traced."""
