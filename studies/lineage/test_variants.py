# SPDX-License-Identifier: Apache-2.0
"""Every variant still finds its place in the kernel. Compiling and timing them takes a GPU's machine."""

import pytest

from .variants import VARIANTS, changed


@pytest.mark.parametrize("name", VARIANTS)
def test_the_texts_stand_in_the_kernel_once(name, tmp_path):
    changed(name, tmp_path)
