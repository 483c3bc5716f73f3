"""The image of a pod's sandbox, as an archive that containerd imports: one static program."""

import hashlib
import io
import json
import platform
import tarfile
from typing import Final

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""The machine's name to that of images."""


def pause_archive(reference: str, program: bytes) -> bytes:
    """A tar file in the format of `docker save`: an image `reference` that runs `program`."""
    layer = _tar({"pause": (program, 0o755)})
    digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Entrypoint": ["/pause"], "User": "65535:65535"},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]
    files = {"config.json": config, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    return _tar({name: (content, 0o644) for name, content in files.items()})


def _tar(files: dict[str, tuple[bytes, int]]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()
