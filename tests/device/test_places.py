"""The table of docs/training.md agrees with the devices on which operations run."""

from __future__ import annotations

from tests.device.places import PAGE, with_table


def test_the_page_has_the_table_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf8")
    assert with_table(page) == page, "python -m tests.device.places writes it anew"
