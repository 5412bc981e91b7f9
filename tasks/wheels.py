"""What `wheel:` means in a recipe: a file inside an installed wheel.

Wheels are only looked into, never imported: they are installed without their dependencies.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, PackagePath, distribution

WHEEL = "wheel:"  # how a locator begins, before the wheel's name


def wheel_files(name: str) -> list[PackagePath]:
    """The files of an installed wheel.

    Raises:
        LookupError: it is not installed; says what to do.
    """
    try:
        return distribution(name).files or []
    except PackageNotFoundError:
        raise LookupError(f"the wheel {name} is not installed; run {install_command(name)}") from None


def install_command(name: str) -> str:
    """What a user must run to have a wheel."""
    return f"pip install --no-deps {name}"
