"""The figures as a table for people and as rows for programs."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from ddltrain.bench.contenders import DTYPES, OWN


@dataclass(frozen=True)
class Row:
    """One figure, as it goes into the JSON file."""

    place: str
    algorithm: str
    ranks: int
    dtype: str
    op: str
    in_place: bool
    size_bytes: int
    time_s: float
    floor_s: float
    errors: int

    @property
    def algbw(self) -> float:
        """Bytes of the message a second."""
        return self.size_bytes / self.time_s

    @property
    def busbw(self) -> float:
        """Bytes a second that a rank's link has to carry at least, which makes different numbers of ranks comparable."""
        return self.algbw * 2 * (self.ranks - 1) / self.ranks

    @property
    def ratio(self) -> float | None:
        """Time over floor; None where nothing has to move."""
        return self.time_s / self.floor_s if self.floor_s else None


def as_json(rows: Iterable[Row]) -> list[dict[str, object]]:
    return [asdict(row) for row in rows]


_GROUP = f"{'time':>11}{'algbw':>9}{'busbw':>9}{'ratio':>8}{'#wrong':>8}"
_UNITS = f"{'(us)':>11}{'(GB/s)':>9}{'(GB/s)':>9}{'':>8}{'':>8}"
_KEYS = f"{'size':>11}{'count':>11}{'dtype':>10}{'op':>5}  {'algorithm':<20}"


def header() -> str:
    """The lines over the table."""
    width = len(_KEYS)
    return "\n".join(
        (
            f"{'':{width}}{'out of place':^{len(_GROUP)}}{'in place':^{len(_GROUP)}}",
            f"{_KEYS}{_GROUP}{_GROUP}{'floor':>11}",
            f"{'(B)':>11}{'':{width - 11}}{_UNITS}{_UNITS}{'(us)':>11}",
        )
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """One line for each pair of rows, out of place and in place, of an algorithm, size and dtype."""
    return [_line(out, within) for out, within in zip(rows[::2], rows[1::2], strict=True)]


def auto_against_best(rows: Sequence[Row]) -> str:
    """One line that holds "auto" against the quickest of the engine's other algorithms and MPI's, in place; empty without these."""
    times_s = {row.algorithm: row.time_s for row in rows if row.in_place and row.algorithm in (*OWN, "mpi")}
    auto_s = times_s.pop("auto", None)
    if auto_s is None or not times_s:
        return ""
    best = min(times_s, key=times_s.__getitem__)
    return f"{'':22}auto / {best}, the quickest single one: {auto_s / times_s[best]:.3f}"


def _line(out: Row, within: Row) -> str:
    count = out.size_bytes // DTYPES[out.dtype].itemsize
    keys = f"{out.size_bytes:>11}{count:>11}{out.dtype:>10}{out.op:>5}  {out.algorithm:<20}"
    return f"{keys}{_figures(out)}{_figures(within)}{out.floor_s * 1e6:>11.1f}"


def _figures(row: Row) -> str:
    ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
    return f"{row.time_s * 1e6:>11.1f}{row.algbw / 1e9:>9.3f}{row.busbw / 1e9:>9.3f}{ratio:>8}{row.errors:>8}"
