"""Pages of which one part is generated: it stands between two markers, and the prose outside stays."""

from typing import Final

BEGIN: Final = "<!-- tables: made by `make reference` -->"
END: Final = "<!-- end of tables -->"


def with_tables(page: str, tables: str) -> str:
    """The page with its tables replaced.

    Raises:
        ValueError: a marker is missing.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"a page with generated tables must hold {BEGIN} and {END}")
    return f"{head}{BEGIN}\n{tables}{END}{tail}"
