# SPDX-License-Identifier: Apache-2.0
"""What the studies' benches begin with: their command line, the GPU, and where a row comes from."""

import argparse
import sys

from keyfold.peers import Place, report
from keyfold.peers.timing import ceilings


def begin(module, peers, *texts):
    """The parsed options (`texts` name further ones that take a text), the place, and a row's provenance, which is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", default=peers)
    for text in texts:
        parser.add_argument(text, default="")
    options = parser.parse_args()
    place = Place("cuda")
    command = f"python -m {module} " + " ".join(sys.argv[1:])
    source = report.provenance(place.machine, command.strip(), ceilings(place), report.commit())
    print(source, flush=True)
    return options, place, source
