"""Environments of programs that do not fit beside asyncrl's own packages."""

import subprocess
import sys
import sysconfig
import zipfile

from asyncrl.extensions.other_evaluators.environments import make_environment, package_folders


def make_wheel(folder):
    wheel = folder / "own-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("own.py", "NAME = 'own'\n")
        archive.writestr("own-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
        archive.writestr(
            "own-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("own-1.0.dist-info/RECORD", "")
    return wheel


def test_an_environment_has_its_packages_and_all_that_this_one_finds(tmp_path, monkeypatch, capsys):
    """As where a virtual environment sees the packages of the system, which has torch."""
    system = tmp_path / "usr" / "dist-packages"
    system.mkdir(parents=True)
    (system / "elsewhere.py").write_text("NAME = 'elsewhere'\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(system), str(tmp_path / "gone" / "site-packages"), ""])
    assert package_folders()[0] == sysconfig.get_paths()["purelib"]
    assert package_folders()[-1] == str(system)
    wheel = make_wheel(tmp_path)
    python = make_environment((str(wheel),), tmp_path / "environment", dependencies=False)
    program = "import own, elsewhere, numpy; print(own.NAME, elsewhere.NAME, own.__file__)"
    said = subprocess.run([python, "-P", "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split()[:2] == ["own", "elsewhere"]
    assert said.split()[2].startswith(str(tmp_path / "environment"))
    assert make_environment((str(wheel),), tmp_path / "environment", dependencies=False) == python
    assert capsys.readouterr().err.count("installing ") == 1, "made once"
