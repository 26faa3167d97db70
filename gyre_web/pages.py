"""Where a page of a long list stands."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pager:
    """page counts from 1; size is the most rows a page has."""

    page: int
    size: int
    total: int

    @property
    def num_pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        return min(self.total, (self.page - 1) * self.size + 1)

    @property
    def last(self) -> int:
        return min(self.total, self.page * self.size)

    @property
    def previous(self) -> int:
        return self.page - 1

    @property
    def next(self) -> int:
        return self.page + 1


def page_number(text: str) -> int:
    """A page number out of a query string; 1 for anything else."""
    return int(text) if text.isdigit() and 0 < int(text) < 100_000 else 1
