"""Files of jobs that run conformance on phones: none of them has ever run on one."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpuedge.conformance.templates import rendered
from gpuedge.farm.page import TEMPLATES as FOLDER
from gpuedge.safety.paths import save_named

TEMPLATES = {
    "adb": {"run-on-device.sh": "run-on-device.sh.j2"},
    "lava": {"lava-{part}.yaml": "lava.yaml.j2"},
    "firebase": {"firebase.yaml": "firebase.yaml.j2"},
    "aws": {"aws-{part}.yaml": "aws.yaml.j2", "run-on-device.sh": "run-on-device.sh.j2"},
}
"""Files of each kind of job, and their templates; with ``{part}`` there is one for each shard."""

KINDS = tuple(TEMPLATES)


def write(kind: str, folder: str, device: str, profile: str, parts: int) -> list[str]:
    """Write the files of a job and return their paths.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    folder : str
        Where they are written.
    device : str
        The device string that is tested on each phone.
    profile : str
        Of the cases.
    parts : int
        Shards, each a job of its own.

    Raises
    ------
    InputError (GE-203)
        They cannot be written.
    """
    made = []
    for name, template in TEMPLATES[kind].items():
        for part in range(1, parts + 1) if "{part}" in name else (1,):
            text = rendered(
                FOLDER / template, "gpuedge farm job",
                device=shlex.quote(device), profile=profile, part=part, parts=parts,
            )  # fmt: skip
            path = Path(folder) / name.format(part=part)
            save_named(path, text.encode(), "--output")
            made.append(str(path))
    return made
