"""How much an answer costs the model that reads it.

What must stay true: the estimate is that of `capsule.format.text.tokens`, and two fifths more, to be on the safe side:
answers hold ids, which cost more than what people write.
"""

from __future__ import annotations

from capsule.format.text.tokens import estimate


def tokens(text: str) -> int:
    """About how many tokens `text` costs; rather too many than too few."""
    return (7 * estimate(text.encode("utf-8", "surrogatepass")) + 4) // 5


def within(text: str, budget: int) -> int:
    """How many characters of the beginning of `text` cost at most `budget` tokens."""
    low, high = 0, min(len(text), budget * 6)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens(text[:middle]) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
