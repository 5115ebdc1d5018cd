#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every figure of README and docs is in the report that it names and every link leads somewhere (scripts/figures.py); the page and
# the picture of all reports are what the reports give; and the check itself notices what it should.
command -v python3 >/dev/null || exit 77
cd "$KEYFOLD_SOURCE" || exit 1
python3 scripts/figures.py --check || exit 1
python3 scripts/report_page.py --check || exit 1
python3 scripts/mask_pictures.py --check || exit 1
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=scripts python3 - <<'PYTHON'
import pathlib
import figures

LLAMA = "zen4/llama.json work=prefill : keyfold .0"
VALUE = figures.figure(LLAMA)


def written(text):
    problems = []
    return figures.written("a.md", text, problems), problems


def unmarked(text):
    return len(list(figures.unmarked("a.md", text)))


# A mark's number follows its report; what no report holds is a problem.
assert written(f"1<!--={LLAMA}--> tokens/s")[0] == f"{VALUE}<!--={LLAMA}--> tokens/s"
assert written(f"**1**<!--={LLAMA}-->")[0] == f"**{VALUE}**<!--={LLAMA}-->"
assert written("1<!--=zen4/llama.json work=nothing : keyfold .0-->")[1]
assert written("1<!--=zen4/nowhere.json : keyfold .0-->")[1]
assert written("1<!--=zen4/llama.json : keyfold .0-->")[1], "several rows are no figure"
assert written("1<!--=zen4/llama.json : count(keyfold) .0-->")[0].startswith("3<")
assert written(r"1<!--=zen4/verify-attention.txt /^verify: (\d+) cases/ ,.0-->")[0].startswith("1,347<")
table = "<!--=zen4/llama.json work={1}\n2: keyfold .0 -->\n\n| | tokens/s |\n|---|---|\n| prompt<!--:prefill--> | 1 |\n"
assert f"| {VALUE} |" in written(table)[0] and not unmarked(table)
assert written(table.replace("prefill", "nothing"))[1]
# A measured figure without a mark is noticed, in prose and in a column with a unit; code, exempt figures and shapes are not.
assert unmarked("It takes 3 µs.") == 1 and unmarked("It takes 3<!--limit--> µs.") == 0
assert unmarked("| a | µs |\n|---|---|\n| b | 3 |\n") == 1 and unmarked("<!--asked-->\n\n| a | µs |\n|---|---|\n| b | 3 |\n") == 0
assert unmarked("`3 µs`\n\n    3 µs\n\nD = 3, twice.") == 0
assert unmarked("It took 3.14159<!--once--> µs.") == 1, "what happened once stands in a notebook"
# Links, headings, and names that a source must hold.
path = figures.ROOT / "docs" / "a.md"
assert not list(figures.broken_links(path, "[x](design.md#proof) [`kf_attention`](../include/keyfold.h) docs/design.md"))
for bad in ("[x](nowhere.md)", "[x](design.md#nothing)", "[`kf_nothing`](../include/keyfold.h)", "docs/nowhere.md"):
    assert len(list(figures.broken_links(path, bad))) == 1, bad
for name, form, text in ((1234.5, ",.0", "1,234"), (0.0123, "g2", "0.012"), (41.26, "g3", "41.3"), (41263.0, "g3", "41300")):
    assert figures.rounded(name, form) == text, (name, form, figures.rounded(name, form))
PYTHON
