"""Structures of a constraint's Jacobian: layout, factorisation, and the choice for a model."""
