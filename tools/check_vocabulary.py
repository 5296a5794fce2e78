"""Check the vocabulary of the project: unique class names, no banned words.

Each banned word has a standard term of the field. A line that needs one anyway, for example to read
a file of an older version, ends with the comment `vocabulary: ok`.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXEMPT = "vocabulary: ok"
BANNED = {
    "picture": "image",
    "pictures": "images",
    "classmate": "same-class image",
    "classmates": "same-class images, positives",
    "wishes": "options",
    "judgement": "decision",
    "judged": "evaluated",
    "refused": "rejected",
    "refusals": "rejections",
    "strangers": "unknown images",
    "settle": "resolve",
    "mend": "fix",
    "mended": "fixed",
    "lonely": "without positives",
    "rightly": "correctly",
    "rehearse": "dry run",
    "twin": "momentum encoder",
    "none of these": "unknown",
    "goes on": "resumes, continues",
    "the same line": "the same command",
    "found =": "a name for the result",
    "made =": "a name for the result",
    "seen =": "a name for the result",
}
SEARCHED = ("src", "tests", "benchmarks", "examples", "docs", "tools")
SUFFIXES = {".py", ".md", ".js", ".css", ".j2", ".toml"}
SKIPPED = ("docs/benchmarks/", "tools/check_vocabulary.py", "CHANGELOG.md")


def files() -> Iterator[Path]:
    for folder in SEARCHED:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and not is_skipped(path):
                yield path
    yield from (path for path in sorted(ROOT.glob("*.md")) if not is_skipped(path))


def is_skipped(path: Path) -> bool:
    return path.relative_to(ROOT).as_posix().startswith(SKIPPED)


def banned_words(path: Path) -> Iterator[str]:
    words = re.compile(rf"\b({'|'.join(BANNED)})(?!\w)", re.IGNORECASE)
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if EXEMPT in line:
            continue
        # Identifiers count word by word: `open_picture` contains "picture".
        for match in words.finditer(re.sub(r"(?<=[a-z0-9])_(?=[a-z0-9])", " ", line)):
            better = BANNED[match.group().lower()]
            yield f"{path.relative_to(ROOT)}:{number}: {match.group()!r}: say {better!r}"


def homonyms() -> Iterator[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    for name, where in places.items():
        if len(where) > 1:
            yield f"{', '.join(where)}: {len(where)} classes are called {name!r}"


def main() -> int:
    assert len(BANNED) <= 25, "a long list of banned words helps nobody"
    problems = [problem for path in files() for problem in banned_words(path)]
    problems += homonyms()
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"vocabulary: {len(problems)} problems" if problems else "vocabulary: no problems")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
