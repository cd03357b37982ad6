"""Output of nccl-tests and rccl-tests (`all_reduce_perf` and its siblings): text -> MEASUREMENTS.

Columns are located by the header line of each table, since they differ between versions and
collectives: redop and root may be missing or blank; the check column is `error` or `#wrong`.
"""

import re
from collections import defaultdict

import pandas as pd

from . import nccl_reports, nccl_rows
from .collectives import collective
from .columns import COLOUR, log_lines, nothing_timed

# A line of the library may follow an unfinished row directly: `float  sumnode01:12:12 [0] NCCL`.
_GLUED = "(?<=N/A)|(?<= sum)|(?<= prod)|(?<= max)|(?<= min)|(?<= avg)|(?<= none)|(?<=mulsum)"
_LIBRARY = re.compile(
    rf"(?:{_GLUED}|(?<![A-Za-z_./-])(?!(?<=\d)e[-+]\d|(?:sum|prod|max|min|avg|none|mulsum)[a-z]))"
    r"[A-Za-z][\w.-]{0,99}:\d+:\d+ (?:\[\d+\] )?(?:\S+ )?(?:NCCL|RCCL) (?:INFO|WARN|TRACE)\b"
)
_TAG = re.compile(  # of mpirun, srun -l, or a clock; before a line of numbers only
    r"^(?:\[[^\]]{1,80}\](?:<std\w+>)?:?|\d+:(?=\s)|\d{4}-\d\d-\d\d[T ]?|"
    r"[\d:.,]*\d:\d\d[\d.,]*Z?)\s*"
)
_CLOCK = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d:\d\d")
_STARTING = re.compile(r"Collective test starting:\s*(\w+)", re.IGNORECASE)
_WORD = re.compile(  # collectives with the same columns
    r"(?<![a-z_-])(?<!reduce )(?:[nr]ccl)?(all[-_ ]?gather|all[-_ ]?to[-_ ]?all|gather|scatter)"
    r"(?:[-_ ]test)?(?![a-z])",
    re.IGNORECASE,
)
_CALLED = re.compile(r"\s*(\w{2,40}): opCount\b")  # NCCL INFO with NCCL_DEBUG_SUBSYS=COLL
_AMD = re.compile(r"\b(?:AMD|Radeon|Instinct|Vega|gfx\d|MI\d)", re.IGNORECASE)
_RANK = re.compile(
    r"\bRank\s+(\d{1,7})\b(?:\s+Group\s+(\d+))?.{0,80}?\bon\s+(\S+)\s+device", re.IGNORECASE
)
_HEADER = re.compile(
    r"#\s*((?:size|bytes)\s+(?:count|n|elements)\s.{0,200}?\b(?:cpu)?time\b.*)", re.IGNORECASE
)
_UNITS = re.compile(r"#\s*\((?:B|bytes)\).*?\((ns|us|ms|s)\)", re.IGNORECASE)
_DTYPES = "u?int(?:8|32|64)?|char|half|float|double|b?float16|bf16|f(?:p8_|8)e[45]m[23]"
_ROW = re.compile(rf"(?<![\w.+-])(\d+)\s+(\d+)\s+({_DTYPES})(?=\s|[A-Z]|$)")
_NUMBERS = re.compile(r"(?:\s*(?:N/A|[-+\d.eE]+\*?)(?=\s|$))+\s*")


def recognises(head: bytes) -> bool:
    """Return whether it contains a table's header; in a log that may come later than the head."""
    text = head.decode(errors="replace")
    return _HEADER.search(text) is not None or nccl_reports.is_report(text)


def read(text: str, file: str) -> tuple[pd.DataFrame, list[str]]:
    """Return MEASUREMENTS out of place and a list of problems.

    Further columns: `in_place_seconds`, `n_wrong`, `dtype`, `redop`. Workers and nodes are counted
    from the `Rank ... on host` lines above each table, or follow from the bandwidths.
    Raises ValueError if the text contains no table of nccl-tests.
    """
    problems: list[str] = []
    text = COLOUR.sub("", text)
    rows = nccl_reports.reported(text, file, problems)
    rows = _text(log_lines(text), problems) if rows is None else rows
    if (table := nccl_rows.tables(rows, problems)) is None:
        expected = (
            "a table of nccl-tests (a line '# size count type ... time algbw busbw' and rows)"
        )
        others = "OSU's, or a CSV with n_workers, nbytes, seconds"
        nothing_timed(text, file, problems, f"{expected}, {others}")
    return table, list(dict.fromkeys(problems))


def _text(lines: list[str], problems: list[str]) -> list[dict]:
    """Return a dict of tokens for each row of the tables in a log."""
    rows, ranks, listing, pending = [], {}, False, None
    said = {"sure": "", "hint": "", "amd": False}
    tables: list[_Table] = []
    for number, line in enumerate(lines, start=1):
        if library := _LIBRARY.search(line):
            if tables and (called := _CALLED.match(line, library.end())):
                tables[-1].called.add(collective(called[1]))
            line = line[: library.start()]
        if rank := _RANK.search(line):
            ranks = ranks if listing else {}  # a new list of devices begins
            ranks.setdefault(int(rank[1]), []).append((rank[2], rank[3]))
            said["amd"] = bool(_AMD.search(line, rank.end()))
            listing = True
        elif header := _HEADER.search(line):
            tables.append(_Table(number, header[1], said, _crew(ranks, problems)))
            listing, pending = False, None
        elif tables and (units := _UNITS.search(line)):
            tables[-1].unit = units[1].lower()
        elif tables and (row := _ROW.search(line)):
            pending = {"where": f"line {number}", "table": tables[-1], "text": line[row.start() :]}
            rows.append(pending)
        elif (
            pending
            and len(pending["text"].split()) < pending["table"].n_columns
            and _NUMBERS.fullmatch(rest := _TAG.sub("", _TAG.sub("", line)))
        ):
            pending["text"] += " " + rest  # a line of the library interrupted the row
        else:
            _hear(line, said)
    rows = [tokens for row in rows if (tokens := _tokens(row, problems))]
    empty = [t for t in tables if all(row["table"] is not t for row in rows)]
    problems += [f"the table at line {t.line} ({t.op or 'unknown'}) has no rows" for t in empty]
    return rows


def _hear(line: str, said: dict) -> None:
    """Note the next collective if a line announces it, or names it or its program."""
    if starting := _STARTING.search(line):
        said["sure"] = starting[1]
    elif len(programs := set(nccl_reports.PROGRAM.findall(line))) == 1:
        said["hint"] = programs.pop()
    elif not programs:
        words = (re.sub("[- ]", "_", word.lower()) for word in _WORD.findall(line))
        ops = {collective(word) for word in words}
        said["hint"] = ops.pop() if len(ops) == 1 else said["hint"]


class _Table:
    """What the rows of a table share: columns, workers, collective.

    called : collectives that the library logged while the table was printed
    amd : whether the devices are AMD's, whose older tests printed other columns
    """

    def __init__(self, line: int, header: str, said: dict, crew: tuple):
        self.line, self.sure, self.unit = line, bool(said["sure"]), "us"
        self.called, self.amd = set(), said["amd"]
        name = (said["sure"] or said["hint"]).lower().removesuffix("_perf")
        self.op = collective(name) or name
        columns = [name for name in header.lower().split() if name != "timestamp"]
        timed = [n for n, name in enumerate(columns) if name.removeprefix("cpu") == "time"] or [0]
        self.lead = columns[: timed[0]]
        self.group = columns[timed[0] : (timed[1:] or [None])[0]]
        self.n_columns = len(self.lead) + 2 * len(self.group)
        self.n_workers, self.n_nodes = crew


def _crew(ranks: dict, problems: list[str]) -> tuple:
    """Return workers and nodes of a communicator; `NCCL_TESTS_SPLIT` makes several at once."""
    if not ranks:
        return pd.NA, pd.NA
    if len(next(iter(ranks.values()))) > 1:
        problems.append(
            "ranks are listed more than once: the test ran separately in each process (built "
            "without MPI?), so n_workers counts the workers of one process"
        )
    groups = defaultdict(list)
    for (group, host), *_ in ranks.values():
        groups[group].append(host)
    if len(groups) > 1:
        problems.append(f"{len(groups)} groups ran at once: n_workers is that of one group")
    n_workers, *others = set(map(len, groups.values()))
    return (pd.NA, pd.NA) if others else (n_workers, max(len(set(h)) for h in groups.values()))


def _tokens(row: dict, problems: list[str]) -> dict | None:
    """Return the row's tokens under common names, None if it has no time."""
    text, table = row["text"], row["table"]
    head = _ROW.match(text)
    size, count, dtype = head.groups()
    rest = [t for t in text[head.end() :].split() if not _CLOCK.fullmatch(t)]
    redop = rest.pop(0) if rest and re.fullmatch(r"[a-z]\w*", rest[0]) else "none"
    width = len(table.group)
    # If the root is blank, the numbers fill whole groups.
    root = rest.pop(0) if "root" in table.lead and len(rest) % width else ""
    groups = [dict(zip(table.group, rest[n : n + width], strict=False)) for n in (0, width)]
    if len(rest) <= width and re.search(r"\S\s{28,}\S", text):
        groups = [{}, groups[0]]  # out of place was not tried
    if not rest:
        problems.append(f"{row['where']} left out (no time): {text.strip()[:80]!r}")
        return None
    return row | nccl_rows.both_places(groups) | {
        "nbytes": size, "count": count, "dtype": dtype, "redop": redop, "root": root,
        "op": table.op, "n_workers": table.n_workers, "n_nodes": table.n_nodes,
    }  # fmt: skip
