#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/pictures/mask-*.svg: causal, window, paged, radix and tree as patterns of query tiles and key tiles.

    python3 scripts/mask_pictures.py [--check]

A small square is a pair of a query (down) and a key (across). A tile is full (every row sees every key: no mask is looked at), partial (the mask
decides pair by pair) or skipped (nothing is loaded); what is which follows from the pairs here, from intervals in src/math/mask.h.
"""

import argparse
import pathlib
import sys

PICTURES = pathlib.Path(__file__).resolve().parents[1] / "docs" / "pictures"
FULL, PARTIAL, HIDDEN, NONE, INK = "#2a7f9e", "#f0a848", "#fbe7c6", "#f1f3f5", "#1c2126"
SIZE, LEFT, TOP = 11, 92, 46  # of a pair; margins


def classes(rows, columns, tile_rows, tile_columns, sees):
    """{(tile row, tile column): full, partial or skipped}"""
    found = {}
    for i in range(0, rows, tile_rows):
        for j in range(0, columns, tile_columns):
            pairs = [
                sees(a, b) for a in range(i, min(rows, i + tile_rows)) for b in range(j, min(columns, j + tile_columns))
            ]
            found[i // tile_rows, j // tile_columns] = "full" if all(pairs) else "partial" if any(pairs) else "skipped"
    return found


def words(x, y, text, anchor="start", size=11, weight="normal"):
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}">{text}</text>'


def picture(title, rows, columns, tile_rows, tile_columns, sees, row_names=(), column_names=(), gaps=(), note=""):
    """row_names, column_names: [(first, last + 1, text)]; gaps: columns before which another memory begins."""
    found = classes(rows, columns, tile_rows, tile_columns, sees)

    def x_of(j):
        return LEFT + j * SIZE + 8 * sum(gap <= j for gap in gaps)

    def right_of(j):  # of the last column before j
        return x_of(j - 1) + SIZE

    parts = [words(LEFT, 16, title, size=13, weight="600")]
    for (a, b), kind in found.items():
        for i in range(a * tile_rows, min(rows, (a + 1) * tile_rows)):
            for j in range(b * tile_columns, min(columns, (b + 1) * tile_columns)):
                fill = FULL if kind == "full" else NONE if kind == "skipped" else PARTIAL if sees(i, j) else HIDDEN
                parts.append(
                    f'<rect x="{x_of(j)}" y="{TOP + i * SIZE}" width="{SIZE - 1}" height="{SIZE - 1}" fill="{fill}"/>'
                )
    for a, b in found:
        x, y = x_of(b * tile_columns), TOP + a * tile_rows * SIZE
        width, height = (
            right_of(min(columns, (b + 1) * tile_columns)) - x,
            (min(rows, (a + 1) * tile_rows) - a * tile_rows) * SIZE,
        )
        parts.append(
            f'<rect x="{x - 0.5}" y="{y - 0.5}" width="{width}" height="{height}" fill="none" stroke="{INK}" stroke-width="1"/>'
        )
    for first, last, text in row_names:
        parts.append(words(LEFT - 8, TOP + (first + last) / 2 * SIZE + 4, text, "end"))
    for first, last, text in column_names:
        parts.append(words((x_of(first) + right_of(last)) / 2, TOP - 8, text, "middle"))
    counts = {kind: sum(k == kind for k in found.values()) for kind in ("full", "partial", "skipped")}
    y, x = TOP + rows * SIZE + 22, LEFT
    for kind, fill in (("full", FULL), ("partial", PARTIAL), ("skipped", NONE)):
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{fill}" stroke="{INK}" stroke-width="0.5"/>'
        )
        parts.append(words(x + 14, y, f"{counts[kind]} {kind}"))
        x += 92
    for number, line in enumerate(note.split("\n") if note else []):
        parts.append(words(12, y + 20 + 15 * number, line))
    height = y + 10 + (15 * len(note.split("\n")) + 6 if note else 0)
    width = max([right_of(columns) + 16, LEFT + 290] + [24 + int(6.1 * len(line)) for line in note.split("\n")])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" font-family="system-ui,sans-serif" fill="{INK}">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def causal():
    n = 32
    return picture(
        "Causal", n, n, 8, 8, lambda i, j: j <= i, [(0, n, "queries")], [(0, n, "keys")],
        note="Above the diagonal nothing is loaded; only the tiles on it look at the mask.",
    )  # fmt: skip


def window():
    n, w = 40, 20
    return picture(
        f"Sliding window of {w} tokens", n, n, 8, 8, lambda i, j: i - w < j <= i, [(0, n, "queries")], [(0, n, "keys")],
        note="A row tile's keys are one interval: masked at both ends, whole between them if the window is wide enough.",
    )  # fmt: skip


def paged():
    """Two sequences of 14 and 9 keys decode one token each; pages of 4 keys lie anywhere in the pool."""
    lengths, tables = (14, 9), ((5, 0, 3, 6), (2, 7, 4))
    page = 4

    def sees(i, j):
        place, slot = divmod(j, page)
        return place in tables[i] and tables[i].index(place) * page + slot < lengths[i]

    return picture(
        "Paged: two sequences decode one token each", 2, 8 * page, 1, page, sees,
        [(0, 1, "sequence 0"), (1, 2, "sequence 1")], [(p * page, (p + 1) * page, f"page {p}") for p in range(8)],
        note="Columns are the pool as it lies in memory. Page tables: 0 reads 5, 0, 3, 6 (14 keys), 1 reads 2, 7, 4 (9 keys).\n"
        "The last page of each is partial: its tail is old data. Page 1 is free.",
    )  # fmt: skip


def radix():
    """Three requests with a common prompt of 16 keys and suffixes of their own."""
    rows, prefix = 12, 16

    def sees(i, j):
        request, query = divmod(i, 4)
        return j < prefix or (
            prefix + 4 * request <= j < prefix + 4 * request + 4 and j - prefix - 4 * request <= query
        )

    return picture(
        "Radix: three requests share a prefix", rows, prefix + 12, 4, 4, sees,
        [(4 * r, 4 * r + 4, f"request {r}") for r in range(3)],
        [(0, prefix, "common prefix, stored once")] + [(prefix + 4 * r, prefix + 4 * r + 4, f"own {r}") for r in range(3)], gaps=(prefix,),
        note="Left part: all twelve rows against the same keys: one taller tile reads each key once for three requests.\n"
        "Right part: block diagonal. Two states a row, one merge.",
    )  # fmt: skip


def tree():
    """A tree of drafted tokens after eight keys: a token sees the keys and its own ancestors."""
    parent = [-1, 0, 0, 1, 1, 2, 3, 5]
    keys, nodes = 8, len(parent)

    def sees(i, j):
        if j < keys:
            return True
        node = i
        while node not in (-1, j - keys):
            node = parent[node]
        return node == j - keys

    return picture(
        "Tree: eight drafted tokens are verified at once", nodes, keys + nodes, 4, 4, sees, [(0, nodes, "tokens")],
        [(0, keys, "cache"), (keys, keys + nodes, "tokens")], gaps=(keys,),
        note="Parents: " + ", ".join(f"{c}→{p}" for c, p in enumerate(parent) if p >= 0) + ". No interval says this: a boolean mask for the right part,\n"
        "none for the left.",
    )  # fmt: skip


DRAWN = [causal, window, paged, radix, tree]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = []
    for draw in DRAWN:
        path, content = PICTURES / f"mask-{draw.__name__}.svg", draw()
        if path.exists() and path.read_text() == content:
            continue
        if options.check:
            stale.append(path.name)
        else:
            path.write_text(content)
            print(f"{path.name}: written")
    if stale:
        print(f"{', '.join(stale)}: not what scripts/mask_pictures.py draws")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
