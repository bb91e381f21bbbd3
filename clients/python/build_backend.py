"""Packs the wheel for pip (PEP 517) with the standard library alone, so that the folder installs without a network."""

import base64
import hashlib
import pathlib
import zipfile

NAME, VERSION = "distlock", "0.1.0"
INFO = f"{NAME}-{VERSION}.dist-info"
METADATA = f"""Metadata-Version: 2.1
Name: {NAME}
Version: {VERSION}
Summary: Distributed locks with renewal, fencing tokens and a loss signal, through the distlock daemon.
License: MIT OR Apache-2.0
Requires-Python: >=3.9
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: distlock\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Writes the wheel and returns its name."""
    here = pathlib.Path(__file__).parent
    modules = [path for path in sorted((here / NAME).iterdir()) if path.suffix == ".py" or path.name == "py.typed"]
    files = {f"{NAME}/{path.name}": path.read_bytes() for path in modules}
    files[f"{INFO}/METADATA"] = METADATA.encode()
    files[f"{INFO}/WHEEL"] = WHEEL.encode()
    record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{INFO}/RECORD"] = "\n".join([*record, f"{INFO}/RECORD,,", ""]).encode()
    name = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    return name


def build_sdist(sdist_directory, config_settings=None):
    """Source distributions are not made: the folder is the source."""
    raise NotImplementedError("install the folder itself")


def _digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
