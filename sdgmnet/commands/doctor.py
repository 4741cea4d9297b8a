"""`sdgmnet doctor`."""

import json
from dataclasses import dataclass

from sdgmnet.doctor import findings
from sdgmnet.options import Flag


@dataclass(frozen=True)
class DoctorArguments:
    """Show what this installation has and lacks: versions, processor, kernels, cache, weights, extras, threads, GPU.

    For example:

        sdgmnet doctor
        sdgmnet doctor --json > report.json

    Paste the output into a bug report.
    """

    json: Flag = False
    """Print JSON instead of lines."""


def main(arguments: DoctorArguments) -> None:
    if arguments.json:
        print(json.dumps([finding._asdict() for finding in findings()], indent=2))
        return
    for finding in findings():
        print(f"{finding.name:18}{finding.value}", flush=True)
        if finding.advice:
            print(f"{'':18}-> {finding.advice}", flush=True)
