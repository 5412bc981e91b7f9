"""Engines are installed once, whole or anew, and never over what somebody else made."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from schemas.errors import EngineError
from tasks.engines import install as installer
from tasks.engines.environments import engines_root, python_of
from tasks.engines.install import install, main


@pytest.fixture(autouse=True)
def requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of packages of llama.cpp, in whose place there is a small one."""
    monkeypatch.setenv("EYAS_ENGINES", str(tmp_path / "engines"))
    folder = tmp_path / "requirements"
    folder.mkdir()
    monkeypatch.setattr(installer, "_REQUIREMENTS", folder)
    path = folder / "llamacpp.txt"
    path.write_text(f"{wheel(tmp_path)}\n")
    return path


def wheel(folder: Path) -> Path:
    """A package by the name of xllamacpp."""
    path = folder / "xllamacpp-1.0-py3-none-any.whl"
    about = "xllamacpp-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xllamacpp.py", "VERSION = 1\n")
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: xllamacpp\nVersion: 1.0\n")
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_an_engine_is_installed_once(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["llamacpp"]) == 0
    assert "llamacpp: installed in" in capfd.readouterr().out
    code = "import xllamacpp; print(xllamacpp.VERSION)"
    assert subprocess.check_output([python_of("llamacpp"), "-c", code], text=True) == "1\n"
    assert not install("llamacpp")


def test_one_that_broke_off_is_made_again(requirements: Path) -> None:
    good = requirements.read_text()
    requirements.write_text(f"{good}no-such-package-of-ours==1.0 --config-settings\n")
    with pytest.raises(EngineError, match=r"llamacpp cannot be installed: (.|\n)*pip(.|\n)*llamacpp.txt"):
        install("llamacpp")
    with pytest.raises(EngineError, match="was not finished"):
        python_of("llamacpp")
    requirements.write_text(good)
    assert install("llamacpp")
    assert python_of("llamacpp").exists()


def test_one_that_was_made_of_another_list_is_made_again(requirements: Path) -> None:
    install("llamacpp")
    (engines_root() / "llamacpp" / "left-over").touch()
    requirements.write_text(f"# newer\n{requirements.read_text()}")
    assert install("llamacpp")
    assert not (engines_root() / "llamacpp" / "left-over").exists()


def test_one_that_somebody_else_made_is_left_alone() -> None:
    own = engines_root() / "llamacpp"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", own], check=True)
    assert not install("llamacpp")
    assert python_of("llamacpp") == own / "bin" / "python"


def test_an_engine_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tensorrt"])
    assert "choose of llamacpp, vllm, sglang" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["llamacpp", "vllm", "sglang"])
def test_every_package_of_a_real_list_is_pinned(engine: str) -> None:
    lines = (Path(installer.__file__).with_name("requirements") / f"{engine}.txt").read_text().splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert packages
    assert all(line.count("==") == 1 for line in packages)
