"""Whether what a run would keep fits into memory."""

from coarea.arguments import require_memory

# About how many numbers say of a draw how it went.
_STATISTICS = 8


def check_memory(size: int, chains: int, draws: int) -> None:
    """Refuse to draw what would not fit into memory: `size` numbers each, and how each went."""
    require_memory(
        8.0 * chains * draws * (size + _STATISTICS),
        f"{draws} draws of {chains} chains, with {size} numbers each,",
        "Ask for fewer draws or chains, or let the model return fewer outputs.",
    )
