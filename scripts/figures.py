#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds the figures of README and docs to the reports that they come from, and their links to what they name.

    python3 scripts/figures.py --check      marked figures say what their reports say, nothing measured is without one,
                                            every link leads somewhere
    python3 scripts/figures.py --write      puts the reports' figures in the place of the marked ones

A mark is a comment behind the number, which a reader of the page does not see:

    takes 34.6<!--=h200/peers-rows.json op=rmsnorm shape=4096,4096 : times_us.keyfold .1--> µs
          file below reports/, selectors of rows, an expression of their fields, the rounding

    selectors   field=value; a shape is 4096,4096 whether the report holds a list, a map or a text. Quote spaces.
    expression  arithmetic on fields of the one row that is left. Where several are left: median(f), low(f), high(f),
                quartile(f), count(f), total(f). row("FILE op=… shape=…").field takes another row,
                text("FILE", "A", "B") a number of a text file; the file - has one row and no fields.
    rounding    .1 decimals, g3 significant digits, with a comma in front thousands apart: ,.0
    text files  <!--=h200/model.txt /tinyllama.*bf16$/ /graph, dependent +(\d+)/--> : each expression is searched behind
                the one before it, the last one's group is the figure.

A table whose rows name themselves is marked once, by a comment on the lines above it. {1} is the text of a row's first
cell, or what a <!--:…--> in it says instead; an empty cell, a dash, a cell with a mark of its own stay as they are.

    <!--=h200/peers-rows.json op={1} shape={2}      (or ={1} alone, with <!--:FILE op=… shape=…--> in each row)
    3: times_us.keyfold .1
    4: 100 * bytes / times_us.keyfold / copy_TB_s / 1000000 .0
    5: ratios.eager .2 bold<1 -->

Figures with a unit that were not measured here say so, behind the number or above their paragraph or table:

    <!--asked--> a requirement           <!--limit--> a hardware's or a bound's figure
    <!--counted--> arithmetic            <!--cited--> somebody else's
    <!--once--> an experiment that is described, not kept: the figure stands in a notebook (NOTEBOOKS), its record
"""

import argparse
import ast
import json
import math
import operator
import pathlib
import re
import shlex
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Records of experiments as they were made, builds that are gone among them: their figures are the record itself.
NOTEBOOKS = [
    f"docs/{name}.md"
    for name in ("cuda_notes", "cuda_linear", "cuda_model", "cpu_attention", "cpu_linear", "cpu_rows", "cpu_model")
]
KINDS = ("asked", "limit", "counted", "cited", "once")
UNIT = r"(?:%|µs|us\b|ms\b|tokens/s|[KMGT]B/s|[GT]FLOP/s|times\b|cases\b|x\b|×(?! ?\d))"
NUMBER = r"[-−]?\d[\d,]*(?:\.\d+)?"
MARK = re.compile(rf"(?P<number>{NUMBER})(?P<bold>\*\*)?<!--=(?P<mark>.*?)-->")
TABLE = re.compile(
    r"^<!--=(?P<source>[^\n]*)\n(?P<columns>(?:\d+:[^\n]*\n?)+?) ?-->\n\n?(?P<table>(?:\|[^\n]*\n)+)", re.M
)
MEASURED_COLUMN = re.compile(rf"(?:^|[\s,(])(?:{UNIT}|tokens/s|ratio|share)", re.I)


class Wrong(Exception):
    pass


# --- reports

_reports = {}


def report(name):
    """The rows of a JSON report, or the text of any other."""
    if name not in _reports:
        path = ROOT / "reports" / name
        if not path.is_file():
            raise Wrong(f"reports/{name} is not there")
        text = path.read_text()
        if path.suffix == ".json":
            content = json.loads(text)
            rows = content if isinstance(content, list) else content.get("rows", [content])
            outer = {k: v for k, v in content.items() if k != "rows"} if isinstance(content, dict) else {}
            _reports[name] = [{**outer, **row} for row in rows]
            for row in _reports[name]:
                if "ratio_lower_quartile" in row:  # as rows were called until commit 410de81
                    row.setdefault("ratios", row["ratio_lower_quartile"])
        else:
            _reports[name] = text
    return _reports[name]


def plain(value):
    """A field as a mark spells it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return ",".join(plain(v) for v in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def field(row, path):
    for part in path.split("."):
        if not isinstance(row, dict) or part not in row:
            raise Wrong(f"no field {path}")
        row = row[part]
    return row


def select(source):
    """'file a=b c=d' -> the rows of the file whose fields are so."""
    name, *selectors = shlex.split(source)
    if name == "-":
        return [{}]
    rows = report(name)
    if isinstance(rows, str):
        raise Wrong(f"reports/{name} is no JSON")
    for selector in selectors:
        path, _, wanted = selector.partition("=")

        def fits(row):
            try:
                return plain(field(row, path)) in (wanted, wanted.replace(", ", ","))
            except Wrong:
                return wanted == "no"  # a flag that an older row lacks

        rows = [row for row in rows if fits(row)]
    if not rows:
        raise Wrong(f"no row of reports/{source}")
    return rows


def from_text(name, *patterns):
    text, at, match = report(name), 0, None
    for pattern in patterns:
        match = re.compile(pattern, re.M).search(text, at)
        if not match:
            raise Wrong(f"reports/{name} has no /{pattern}/")
        at = match.end()
    return match.group(1 if match.lastindex else 0)


# --- expressions

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
OVER_ROWS = {
    "median": statistics.median,
    "low": min,
    "high": max,
    "quartile": lambda v: statistics.quantiles(v, n=4, method="inclusive")[0] if len(v) > 1 else v[0],
    "count": len,
    "total": sum,
}


def evaluate(text, rows):
    def number(value):
        return float(str(value).replace(",", "")) if not isinstance(value, (int, float)) else value

    def path_of(node):
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            return f"{path_of(node.value)}.{node.attr}"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):  # as sweep_us["G=8"]
            return f"{path_of(node.value)}.{node.slice.value}"
        raise Wrong(f"not understood: {text}")

    def value(node, over):
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            return OPERATORS[type(node.op)](value(node.left, over), value(node.right, over))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -value(node.operand, over)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name, arguments = node.func.id, node.args
            if name in OVER_ROWS:
                return OVER_ROWS[name]([value(arguments[0], [row]) for row in over])
            if name == "least":
                return min(value(a, over) for a in arguments)
            if name == "text":
                return number(from_text(*(a.value for a in arguments)))
        base, path = node, []
        while isinstance(base, ast.Attribute):
            path.insert(0, base.attr)
            base = base.value
        if isinstance(base, ast.Call) and isinstance(base.func, ast.Name) and base.func.id == "row":
            found = select(base.args[0].value)
            if len(found) != 1:
                raise Wrong(f"{len(found)} rows of {base.args[0].value}")
            return number(field(found[0], ".".join(path)))
        if len(over) != 1:
            raise Wrong(f"{len(over)} rows, and {text} wants one")
        return number(field(over[0], path_of(node)))

    return value(ast.parse(text.strip(), mode="eval").body, rows)


def rounded(value, form):
    form = form or "g3"
    comma, form = (",", form[1:]) if form.startswith(",") else ("", form)
    if form.startswith("g"):
        decimals = int(form[1:]) - 1 - math.floor(math.log10(abs(value))) if value else 0
        return f"{round(value, decimals):{comma}.{max(0, decimals)}f}"
    return f"{value:{comma}{form}f}"


FORM = re.compile(r"^(?P<expression>.*?)(?:(?:^| +)(?P<form>,?(?:\.\d|g\d)))?(?: +bold(?P<than>[<>][\d.]+))?\s*$", re.S)


def split_form(text):
    match = FORM.match(text.strip())
    return match["expression"], match["form"], match["than"]


def figure(mark):
    """What a mark's report says, as text."""
    if re.match(r"\s*\S+ +/", mark):
        name, rest = mark.strip().split(None, 1)
        patterns = re.findall(r"/((?:[^/\\]|\\.)+)/", rest)
        form = split_form(rest[rest.rfind("/") + 1 :] or " ")[1]
        found = from_text(name, *(p.replace("\\/", "/") for p in patterns))
        return rounded(float(found.replace(",", "")), form) if form else found
    source, colon, rest = mark.partition(" : ")
    if not colon:
        raise Wrong("a mark is 'file selectors : expression rounding'")
    expression, form, _ = split_form(rest)
    return rounded(evaluate(expression, select(source)), form)


# --- documents


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def cell_text(cell):
    """What a cell is called in a selector."""
    named = re.search(r"<!--:(.*?)-->", cell)
    return named[1] if named else re.sub(r"<!--.*?-->|\*\*", "", cell).strip()


def quoted(cell):
    """A cell as a selector's value; one that has selectors of its own stays as it is."""
    return cell if "=" in cell else shlex.quote(cell)


def table_written(match, problems, where):
    """The table with its marked columns filled in from the reports."""
    columns = {}
    for line in match["columns"].strip().splitlines():
        number, _, rest = line.partition(":")
        columns[int(number)] = split_form(rest)
    lines = match["table"].rstrip("\n").split("\n")
    for at in range(2, len(lines)):
        row = cells(lines[at])
        named = [cell_text(cell) for cell in row]

        def filled(text):
            return re.sub(r"\{(\d+)\}", lambda m: quoted(named[int(m[1]) - 1]), text)

        for number, (expression, form, than) in columns.items():
            cell = row[number - 1] if number <= len(row) else ""
            if not cell or "<!--" in cell or cell in ("-", "–", "—"):
                continue
            try:
                source = filled(match["source"].strip())
                result = evaluate(re.sub(r"\{(\d+)\}", lambda m: named[int(m[1]) - 1], expression), select(source))
            except (Wrong, ValueError, SyntaxError, ZeroDivisionError) as error:
                problems.append(f"{where}: row “{' | '.join(named[:2])}”, column {number}: {error}")
                continue
            text = rounded(result, form)
            new, count = re.subn(NUMBER, text, cell, count=1)
            if not count:
                problems.append(f"{where}: row “{named[0]}”, column {number}: no number in “{cell}”")
                continue
            if than:
                shown = float(text.replace(",", ""))
                bold = shown < float(than[1:]) if than[0] == "<" else shown > float(than[1:])
                new = new.replace("**", "")
                new = re.sub(NUMBER, f"**{text}**", new, count=1) if bold else new
            row[number - 1] = new
        lines[at] = "| " + " | ".join(row) + " |"
    return match[0][: match.start("table") - match.start()] + "\n".join(lines) + "\n"


def line_of(text, at):
    return text.count("\n", 0, at) + 1


def written(name, text, problems):
    """The document with every marked figure as its report has it."""

    def one(match):
        try:
            return figure(match["mark"]) + (match["bold"] or "") + f"<!--={match['mark']}-->"
        except (Wrong, ValueError, SyntaxError, ZeroDivisionError) as error:
            problems.append(f"{name}:{line_of(text, match.start())}: {error}: {match['mark'].strip()}")
            return match[0]

    text = TABLE.sub(lambda m: table_written(m, problems, f"{name}:{line_of(text, m.start())}"), text)
    return MARK.sub(one, text)


def blanked(match):
    return re.sub(r"[^\n]", " ", match[0])


def blocks(text):
    """(offset, block) of paragraphs and tables: what empty lines part."""
    at = 0
    for block in re.split(r"(\n\s*\n)", text):
        if block.strip():
            yield at, block
        at += len(block)


EXEMPT_BLOCK = re.compile(rf"^\s*<!--({'|'.join(KINDS)})\b[^>]*-->\s*(?:\n|$)")


def unmarked(name, text):
    """Figures of measurement without a mark or an exemption."""
    text = re.sub(r"^```.*?^```|^    [^\n]*$", blanked, text, flags=re.S | re.M)
    text = re.sub(r"`[^`\n]*`", blanked, text)
    notebooks = None
    skip = None
    covered_columns = {}  # offset of a table -> the columns that its directive fills
    for table in TABLE.finditer(text):
        covered_columns[table.start("table")] = {int(c.split(":")[0]) for c in table["columns"].strip().splitlines()}
    text = TABLE.sub(lambda m: re.sub(r"[^\n]", " ", m[0][: m.start("table") - m.start()]) + m["table"], text)
    for at, block in blocks(text):
        exempt = EXEMPT_BLOCK.match(block)
        if exempt and not block[exempt.end() :].strip():
            skip = exempt[1]
            continue
        kind, skip = (exempt[1] if exempt else skip), None
        lines = block.split("\n")
        table = next((i for i, line in enumerate(lines) if line.startswith("|")), None)
        begin = at + sum(len(line) + 1 for line in lines[:table]) if table is not None else None
        marked = covered_columns.get(begin, set())
        measured = set()
        if table is not None and table + 1 < len(lines) and re.match(r"\|[-:| ]+\|?$", lines[table + 1].strip()):
            heads = enumerate(cells(re.sub(r"<!--.*?-->", "", lines[table])), 1)
            measured = {i for i, head in heads if MEASURED_COLUMN.search(head)}
        offset = at
        for number, line in enumerate(lines):
            here = f"{name}:{line_of(text, offset)}"
            offset += len(line) + 1
            if number == table:
                continue
            if line.startswith("|") and table is not None and number > table + 1:
                row = enumerate(cells(line), 1)
                pieces = [(cell, i in measured and "<!--:" not in cell, i in marked) for i, cell in row]
            else:
                pieces = [(line, False, False)]
            for piece, bare, covered in pieces:
                if covered:
                    continue
                pattern = rf"(?<![\w.,/]){NUMBER}(?:\*\*)?(?P<mark>(?:<!--.*?-->)?)(?P<unit>\s?{UNIT})?"
                for found in re.finditer(pattern, piece):
                    mark = re.match(r"<!--(=|\w+)", found["mark"])
                    digits = re.match(NUMBER, found[0])[0]
                    within = piece[: found.start()].count("(") > piece[: found.start()].count(")")  # (a shape)
                    needs = found["unit"] or (bare and not within)
                    what = (mark[1] if mark else None) or kind
                    if what == "once" and needs:
                        notebooks = notebooks or "\n".join((ROOT / n).read_text() for n in NOTEBOOKS)
                        if not re.search(rf"(?<![\d.]){re.escape(digits)}(?![\d]|\.\d)", notebooks):
                            yield f"{here}: {digits} stands in no notebook"
                    elif needs and what != "=" and what not in KINDS:
                        yield f"{here}: {found[0].strip()} is measured, and has no mark: {piece.strip()[:90]}"


# --- links


def anchor(heading):
    """A heading's anchor, as GitHub makes it."""
    heading = re.sub(r"<!--.*?-->|[`*]|\[|\]\([^)]*\)", "", heading).strip().lower()
    return re.sub(r"[^\w\- ]", "", heading).replace(" ", "-")


PATH = re.compile(
    r"(?<![\w/.*$-])((?:docs|src|reports|studies|tests|scripts|tools|python|include)/[\w./-]*"
    r"\.(?:md|json|txt|py|sh|c|h|cu|cuh|svg|png|html))\b"
)


def broken_links(path, text):
    name = path.relative_to(ROOT)
    bare = re.sub(r"^```.*?^```", blanked, text, flags=re.S | re.M)
    for found in re.finditer(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", bare):
        shown, target = found[1], found[2]
        if re.match(r"[a-z]+:", target):
            continue
        where, _, fragment = target.partition("#")
        to = (path.parent / where).resolve() if where else path
        here = f"{name}:{line_of(text, found.start())}"
        if not to.exists():
            yield f"{here}: {target} is not there"
        elif fragment and to.suffix == ".md":
            prose = re.sub(r"^```.*?^```", "", to.read_text(), flags=re.S | re.M)
            if fragment not in {anchor(h) for h in re.findall(r"^#+ (.*)$", prose, re.M)}:
                yield f"{here}: {target}: no such heading"
        elif to.is_file() and to.suffix != ".md":
            code = re.fullmatch(r"`([^`]+)`", shown)  # a name that the source must hold
            named = code and pathlib.PurePath(code[1]).name != to.name
            if named and code[1] not in to.read_text(errors="replace"):
                yield f"{here}: {where} does not hold {code[1]}"
    for found in PATH.finditer(re.sub(r"<!--.*?-->|^    [^\n]*$", blanked, bare, flags=re.S | re.M)):
        bases = (ROOT, path.parent, ROOT / "python", ROOT / "reports" / "h200")
        if "NAME" not in found[1] and not any((base / found[1]).exists() for base in bases):
            yield f"{name}:{line_of(text, found.start())}: {found[1]} is not there"


def documents():
    """Those whose figures are held; every *.md has its links looked at."""
    elsewhere = re.compile(r"build|\.|reports/")
    everything = sorted(p for p in ROOT.glob("**/*.md") if not elsewhere.match(str(p.relative_to(ROOT))))
    held = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return everything, held


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true")
    action.add_argument("--write", action="store_true")
    parser.add_argument("files", nargs="*", type=pathlib.Path, help="these documents alone")
    options = parser.parse_args()
    everything, held = documents()
    if options.files:
        held = everything = [path.resolve() for path in options.files]
    problems, figures = [], 0
    for path in everything:
        name, text = str(path.relative_to(ROOT)), path.read_text()
        new = written(name, text, problems)
        figures += len(MARK.findall(text))
        for table in TABLE.finditer(text):
            figures += len(table["columns"].strip().splitlines()) * (table["table"].count("\n") - 2)
        if new != text and options.write:
            path.write_text(new)
            print(f"{name}: written")
        elif new != text:
            for number, (a, b) in enumerate(zip(text.split("\n"), new.split("\n")), 1):
                if a != b:
                    problems.append(f"{name}:{number}: not what the report says:\n    {a}\n    {b}")
        if path in held and name not in NOTEBOOKS:
            problems += unmarked(name, new)
        problems += broken_links(path, new)
    print("\n".join(problems), file=sys.stderr) if problems else None
    print(f"figures: {figures} marked in {len(everything)} documents, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
