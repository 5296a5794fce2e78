"""Check the licences of all dependencies, write a bill of materials, and ask for known problems.

    python tools/audit.py [--out build/sbom.cdx.json] [--pip-audit PROGRAM]

The exit code is 1 if a dependency has a licence that is neither permissive nor listed below, or if
pip-audit finds a known vulnerability. pip-audit needs the network; without its data, that step is
reported as not checked.
"""

import argparse
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = "scs-supcon"
PERMISSIVE = (
    *("mit", "mit-cmu", "mit-0", "bsd", "apache", "isc", "zlib", "hpnd", "psf", "python software"),
    *("unlicense", "0bsd", "cc0", "public domain", "blueoak", "boost", "bsl-1.0", "ncsa"),
    *("historical permission", "freetype", "libpng", "the unlicense", "cnri"),
)
# Weak copyleft applies to the files of these packages, which are used unchanged.
WEAK_COPYLEFT = {"certifi", "tqdm", "hypothesis", "pathspec", "orjson"}
# Binaries that CUDA builds of PyTorch load; builds for the CPU do not install them.
NVIDIA = re.compile(r"^(nvidia-.*|cuda-.*)$")
VULNERABLE = "known vulnerability: "
UNSTATED = {  # licence files say so, the metadata does not
    "greenlet": "MIT AND PSF-2.0",
}


def dependencies(root: str) -> dict[str, Distribution]:
    """Return every installed distribution that `root` needs, with all of its extras."""
    found: dict[str, Distribution] = {}
    waiting = [(root, frozenset(["all", "dev", "bench", "browser", "docs", "serve"]))]
    visited = set()
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in visited:
            continue
        visited.add((name, extras))
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # an extra that is not installed, or another platform
        found[canonicalize_name(name)] = distribution
        for text in distribution.requires or ():
            requirement = Requirement(text)
            environments = [{"extra": extra} for extra in (*extras, "")]
            marker = requirement.marker
            if marker is None or any(marker.evaluate(values) for values in environments):
                waiting.append((requirement.name, frozenset(requirement.extras)))
    found.pop(canonicalize_name(root), None)
    return dict(sorted(found.items()))


def licence(distribution: Distribution) -> str:
    """Return the licence that a distribution states."""
    name = canonicalize_name(distribution.name)
    metadata = distribution.metadata
    classifiers = [
        text.rpartition("::")[2].strip()
        for text in metadata.get_all("Classifier") or []
        if text.startswith("License ::") and not text.endswith("OSI Approved")
    ]
    stated = metadata.get("License-Expression") or " / ".join(classifiers)
    text = stated or (metadata.get("License") or "").strip().splitlines()[:1]
    return UNSTATED.get(name) or (text if isinstance(text, str) else "".join(text)) or "not stated"


def verdict(name: str, text: str) -> str:
    """Return "permissive", "weak copyleft", "CUDA" or "rejected" for a licence."""
    if NVIDIA.match(name):
        return "CUDA"
    lower = text.lower()
    strong = re.search(r"(?<!l)gpl|affero", lower) and not re.search(r"\bor\b", lower)
    if name in WEAK_COPYLEFT and "mpl" in lower.replace("mozilla public license", "mpl"):
        return "weak copyleft"
    if not strong and any(word in lower for word in PERMISSIVE):
        return "permissive"
    return "rejected"


def bill_of_materials(
    found: dict[str, Distribution], licences: dict[str, str]
) -> dict[str, object]:
    """Return a CycloneDX document of all dependencies."""
    own = importlib.metadata.distribution(ROOT)
    components = [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}@{distribution.version}",
            "name": name,
            "version": distribution.version,
            "purl": f"pkg:pypi/{name}@{distribution.version}",
            "licenses": [{"license": {"name": licences[name]}}],
        }
        for name, distribution in found.items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "library", "name": ROOT, "version": own.version},
        },
        "components": components,
    }


def known_vulnerabilities(program: str, folder: Path) -> Iterator[str]:
    """Yield what pip-audit reports about the packages in a folder, or that it checked nothing.

    pip-audit reports no vulnerabilities, with the exit code 0, if its data know none of the
    packages, as behind a mirror of PyPI. Such packages are counted as not checked.
    """
    path = shutil.which(program)
    if path is None:
        yield f"not checked: there is no {program} (pip install pip-audit)"
        return
    command = [path, "--progress-spinner", "off", "--format", "json", "--path", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        packages = json.loads(result.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
        yield f"not checked: pip-audit cannot reach its data ({reason[:200]})"
        return
    checked = [package for package in packages if "skip_reason" not in package]
    if not checked:
        yield f"not checked: the data that pip-audit reaches know none of {len(packages)} packages"
        return
    for package in checked:
        for problem in package["vulns"]:
            versions = ", ".join(problem["fix_versions"]) or "no version"
            where = f"{package['name']} {package['version']}"
            yield f"{VULNERABLE}{where}: {problem['id']}, fixed in {versions}"
    yield f"{len(checked)} packages checked, {len(packages) - len(checked)} unknown to pip-audit"


def main() -> int:
    """Print the licences, write the bill of materials, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/sbom.cdx.json"))
    parser.add_argument("--pip-audit", default="pip-audit", metavar="PROGRAM")
    parser.add_argument("--no-vulnerabilities", action="store_true", help="do not run pip-audit")
    arguments = parser.parse_args()
    installed = dependencies(ROOT)
    licences = {name: licence(distribution) for name, distribution in installed.items()}
    verdicts = {name: verdict(name, text) for name, text in licences.items()}
    for name, distribution in installed.items():
        print(f"{name:<28} {distribution.version:<16} {verdicts[name]:<14} {licences[name][:60]}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    document = bill_of_materials(installed, licences)
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    rejected = [name for name, value in verdicts.items() if value == "rejected"]
    counts = ", ".join(f"{n} {value}" for value, n in Counter(verdicts.values()).items())
    print(f"\n{len(installed)} dependencies: {counts}; bill of materials: {arguments.out}")
    packages = Path(sysconfig.get_path("purelib"))
    asked = not arguments.no_vulnerabilities
    lines = list(known_vulnerabilities(arguments.pip_audit, packages)) if asked else []
    for line in lines:
        print(f"vulnerabilities: {line}")
    if rejected:
        print(f"rejected licences: {', '.join(rejected)}")
    return int(bool(rejected) or any(line.startswith(VULNERABLE) for line in lines))


if __name__ == "__main__":
    sys.exit(main())
