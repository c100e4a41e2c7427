"""docs/reference.md is what the docstrings say."""

from tests.repository.reference import PAGE, _text, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf8") == page(), "run python -m tests.repository.reference"


def test_experimental_names_have_a_section_of_their_own() -> None:
    text = PAGE.read_text(encoding="utf8")
    section = text.split("\n## Experimental\n")[1].split("\n## ")[0]
    table = {line.split(" | ")[0].strip("| ") for line in section.splitlines() if "| " in line}
    named = {line.removeprefix("### ") for line in section.splitlines() if line[:4] == "### "}
    assert named and named <= table
    assert all(text.count(f"\n### {name}\n") == 1 for name in named)


def test_what_a_line_of_prose_begins_with_is_no_setting() -> None:
    def called(width: int) -> None:
        """Of random choices
        t: one after another.

        width: of each.
        RETURNS: nothing.
        """

    lines = _text(called, called).splitlines()
    assert lines[1] == "t: one after another."
    assert lines[3:] == ["- `width`: of each.", "- `RETURNS`: nothing."]


def test_every_setting_has_a_word_about_it() -> None:
    """A name in a signature that the text below it does not have."""
    missing = []
    for section in page().split("\n### ")[1:]:
        lines = section.splitlines()
        if len(lines) < 3 or not lines[2].startswith("`"):
            continue
        text = "\n".join(lines[3:])
        for setting in lines[2].split("`")[1::2]:
            name = setting.split(" = ")[0]
            if name != "model" and name not in text:
                missing.append(f"{lines[0]}: {name}")
    assert missing == []
