"""How a constraint's Jacobian is laid out and factored, and which layout fits a model."""
