"""Compiler options."""

# For the sake of digits XLA sums a long row on a CPU in pieces, each a program of its own. Doubles
# have digits to spare, and without it a transition of Lotka–Volterra takes a quarter less. Nor are
# its sums and products handed to a library, which takes longer to be called than they take.
COMPILER_OPTIONS = {"xla_disable_hlo_passes": "tree_reduction_rewriter,dot-library-rewriter"}


# Nor is a loop within a routine shared among cores.
ROUTINE_OPTIONS = {
    name: f"{passes},cpu-parallel-task-assigner" for name, passes in COMPILER_OPTIONS.items()
}
