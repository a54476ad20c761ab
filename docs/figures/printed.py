"""Numbers as the tables of the pages print them."""


def thousands(number: float) -> str:
    """Three digits of a count, and no power of ten."""
    return f"{float(f'{number:.3g}'):,.0f}"
