"""The small linear algebra that the structures of Jacobians are built from."""
