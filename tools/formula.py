"""Write a Homebrew formula: `python -m tools.formula --lock pylock.toml --url URL --sha256 HEX > mcp-skills-server.rb`.

The lock is a `pylock.toml` (PEP 751) with the files of the index that releases are published on, made from
constraints.txt by one command:

    uv pip compile pyproject.toml --constraint constraints.txt --format pylock.toml --output-file pylock.toml

`--url` and `--sha256` are those of our source distribution there. A locked version that differs from constraints.txt is
refused. The repository has no formula, since its addresses depend on the index.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from packaging.markers import Marker

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHON: Final = "3.13"
BREWED: Final = {
    "cffi": "cffi",
    "cryptography": "cryptography",
    "pycparser": "pycparser",
    "pydantic": "pydantic",
    "pydantic-core": "pydantic",
    "rpds-py": "rpds-py",
}
"""Packages that Homebrew has as compiled formulae."""
SYSTEMS: Final = (("darwin", "Darwin"), ("linux", "Linux"))
HEAD: Final = """\
class McpSkillsServer < Formula
  include Language::Python::Virtualenv

  desc "Serves any folder of Agent Skills to every MCP host"
  homepage "https://agentskills.io"
  url "{url}"
  sha256 "{sha256}"
  license "Apache-2.0"

  depends_on "rust" => :build # for watchfiles
{depends}
  depends_on "libyaml"
  depends_on "python@{python}"
"""
RESOURCE: Final = """
  resource "{name}" do
    url "{url}"
    sha256 "{sha256}"
  end
"""
TAIL: Final = """
  def install
    virtualenv_install_with_resources
    man1.install "docs/mcp-skills-server.1"
    generate_completions_from_executable(bin/"mcp-skills-server", "completion")
  end

  test do
    (testpath/"tea/SKILL.md").write <<~MARKDOWN
      ---
      name: tea
      description: Makes tea. Use when somebody wants tea.
      ---

      Boil water.
    MARKDOWN
    assert_match "tea", shell_output("#{bin}/mcp-skills-server list #{testpath}")
  end
end
"""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def constraints(text: str) -> dict[str, str]:
    pinned = (line.partition("==") for line in text.splitlines() if "==" in line)
    return {normal(name): version for name, _, version in pinned}


def wanted(package: Mapping[str, Any]) -> bool:
    """Return whether macOS or Linux needs the package."""
    if "marker" not in package:
        return True
    marker = Marker(package["marker"])
    environments = (
        {"sys_platform": name, "platform_system": system, "os_name": "posix", "python_version": PYTHON}
        for name, system in SYSTEMS
    )
    return any(marker.evaluate(each) for each in environments)


def formula(lock: Mapping[str, Any], pinned: Mapping[str, str], url: str, sha256: str) -> str:
    """Return the formula.

    Raises:
        ValueError: the lock is not in step with the constraints, or a package has no source distribution.
    """
    resources: list[str] = []
    brewed: set[str] = set()
    for package in filter(wanted, lock["packages"]):
        name, version = normal(package["name"]), package["version"]
        if pinned.get(name) != version:
            raise ValueError(f"{name} {version} is locked, and constraints.txt has {pinned.get(name, 'none')}")
        if name in BREWED:
            brewed.add(BREWED[name])
            continue
        if "sdist" not in package:
            raise ValueError(f"{name} {version} has no source distribution")
        source = package["sdist"]
        resources.append(RESOURCE.format(name=name, url=source["url"], sha256=source["hashes"]["sha256"]))
    depends = "\n".join(f'  depends_on "{each}"' for each in sorted(brewed))
    head = HEAD.format(url=url, sha256=sha256, depends=depends, python=PYTHON)
    return head + "".join(sorted(resources)) + TAIL


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tools.formula", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lock", type=Path, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--sha256", required=True)
    given = parser.parse_args(arguments)
    pinned = constraints((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    try:
        lock = tomllib.loads(given.lock.read_text(encoding="utf-8"))
        sys.stdout.write(formula(lock, pinned, given.url, given.sha256))
    except (OSError, ValueError, KeyError) as error:
        print(f"tools.formula: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
