"""buildah with a storage of its own."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.image.steps import ImageError, run


@dataclass
class Buildah:
    """buildah with a storage of its own, and the containers that are to be removed."""

    storage: Path
    made: list[str] = field(default_factory=list)

    def command(self, *arguments: str | Path) -> list[str]:
        """The command line."""
        places = ["--root", str(self.storage / "root"), "--runroot", str(self.storage / "run")]
        return ["buildah", *places, "--storage-driver", "vfs", *map(str, arguments)]

    def __call__(self, *arguments: str | Path) -> str:
        """Run it and return its stdout."""
        return run(self.command(*arguments))

    def container(self, image: str) -> str:
        """A new container of an image."""
        name = self("from", "--pull-never", image)
        self.made.append(name)
        return name

    def remove(self, name: str) -> None:
        """Remove a container."""
        self("rm", name)
        self.made.remove(name)

    def clean(self) -> None:
        """Remove every container that was made here."""
        for name in list(self.made):
            with suppress(ImageError):
                self.remove(name)
