"""Words that the project does not use, after the table in CONTRIBUTING.md: `python tests/check_words.py [FILE ...]`."""

import re
import subprocess
import sys
from pathlib import Path

# What a line may not hold -> what to write instead.
REPLACED = {
    r"camera.s note": "EXIF orientation",
    r"typed beside|goes before it": "explicit flags override the recipe",
    r"\bcontenders?\b": "descriptor",
    r'(?<!")\bpictures?\b(?!")': "image (photo for one's own photographs, figure for a plot)",
    r"that are none\b|(?<!there )is none\b": "is not a valid ...",
    r"is said in|voices a": "raises InputError; reports; warns",
    r"not in the repository": "commit the script, or delete the number",
    r"has not been repeated|an earlier state of this page": "delete, or measure again",
    r"\basked: ": "delete: a result stands by itself, with its command",
    r"take turns|by turns": "alternate; round-robin",
}
TABLES = (Path(__file__).name, "CONTRIBUTING.md", "redesign.md")  # they name the words


def tracked() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.md", "*.cpp", "*.h"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [Path(name) for name in names.stdout.split()]


def main(files: list[Path]) -> int:
    found = 0
    for path in files:
        if path.name in TABLES or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            for pattern, instead in REPLACED.items():
                if re.search(pattern, line):
                    print(f"{path}:{number}: {re.search(pattern, line)[0]!r} -> {instead}")  # type: ignore[index]
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]] or tracked()))
