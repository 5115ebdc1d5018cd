#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds keyfold with warnings as errors and runs the whole suite. The last line says how many passed.
set -e
cd "$(dirname "$0")"
sh scripts/install-deps.sh test
exec make --no-print-directory test-all
