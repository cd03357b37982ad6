"""How wide a figure may be in each venue, and how large its text: plain data."""

from typing import NamedTuple

POINTS = 72.27  # TeX's points an inch, in which classes give their widths


class Venue(NamedTuple):
    """Widths of one column and, where there are two, of both, in TeX's pt; sizes of text in pt.

    text : of labels, just below the size of the venue's captions
    small : of ticks and legends
    """

    widths: tuple[float, ...]
    text: float = 8
    small: float = 7

    def width_in(self, columns: int) -> float:
        return self.widths[columns - 1] / POINTS


def _both(text_width: float, between: float) -> tuple[float, float]:
    """Return the width of one of two columns, and of the whole text."""
    return (text_width - between) / 2, text_width


VENUES = {
    # acmart.cls, sigconf: letter paper of 8.5 in, inner and outer margins of 54 pt, columnsep 2 pc
    "acm-sigconf": Venue(_both(8.5 * POINTS - 2 * 54, 24)),  # 241.15 and 506.30 pt
    # IEEEtran.cls, conference and journal: columns of 21 pc, 1 pc in between
    "ieee": Venue(_both(43 * 12, 12)),  # 252 and 516 pt
    # usenix2019_v3.sty: 7 in of text, 0.33 in in between
    "usenix": Venue(_both(7 * POINTS, 0.33 * POINTS)),  # 241.02 and 505.89 pt
    # mlsys2025.sty, made from ICML's: 6.75 in of text, 0.25 in in between
    "mlsys": Venue(_both(6.75 * POINTS, 0.25 * POINTS)),  # 234.88 and 487.82 pt
    # neurips_2024.sty: a single column of 5.5 in, captions of 10 pt
    "neurips": Venue((5.5 * POINTS,), text=9, small=8),  # 397.49 pt
    # icml2025.sty, which refuses another width than 487.8225 pt
    "icml": Venue(_both(6.75 * POINTS, 0.25 * POINTS)),  # 234.88 and 487.82 pt
    # llncs.cls: a single column of 12.2 cm, captions of 9 pt
    "lncs": Venue((12.2 / 2.54 * POINTS,)),  # 347.12 pt
    # report.cls at 11 pt on A4, LaTeX's own: a single column of 360 pt, captions of 11 pt
    "thesis": Venue((360.0,), text=9, small=8),
}
