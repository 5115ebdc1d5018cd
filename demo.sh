#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds keyfold, fetches a small model, asks it two questions and times attention on this machine.
set -e
cd "$(dirname "$0")"
sh scripts/install-deps.sh demo
exec make --no-print-directory demo
