"""The linear algebra that the Jacobian structures are built from."""
