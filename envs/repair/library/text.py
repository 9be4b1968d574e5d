# mypy: ignore-errors
"""Text helpers."""


def wrap(words, width):
    """Return lines of words joined by blanks, each as long as fits into the width."""
    lines = []
    line = ""
    for word in words:
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = line + " " + word if line else word
    if line:
        lines.append(line)
    return lines


def run_lengths(text):
    """Return [character, count] for every run of equal characters."""
    runs = []
    for character in text:
        if runs and runs[-1][0] == character:
            runs[-1][1] += 1
        else:
            runs.append([character, 1])
    return runs


def is_balanced(text):
    """Return whether round and square brackets are closed in order."""
    opened = []
    for character in text:
        if character in "([":
            opened.append(character)
        elif character in ")]":
            if not opened:
                return False
            if opened.pop() + character not in ("()", "[]"):
                return False
    return not opened


def column(number):
    """Return the spreadsheet name of a column: 1 is A, 26 is Z, 27 is AA. At most three letters."""
    letters = ""
    for _ in range(3):
        if number > 0:
            number, rest = divmod(number - 1, 26)
            letters = chr(ord("A") + rest) + letters
    return letters
